// Outputs and Jacobians of an exported emulator for the rows of a CSV file, in physical units.
//
//   emulate MODEL INPUT.csv         a CSV: the outputs, and the derivative of each output with respect to each input
//   emulate MODEL INPUT.csv time    a JSON line: microseconds of one row, and seconds of 100,000 rows, on one thread
//
// MODEL is a .ts (TorchScript) or .pt2 (AOTInductor) file that scripts/export_model.py wrote. The first line of INPUT.csv has
// the names of the inputs in the order of the model; each further line has the numbers of a row.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>

namespace {

using Loader = torch::inductor::AOTIModelPackageLoader;
using Texts = std::unordered_map<std::string, std::string>;

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// The fields of a line of a CSV file, also empty ones.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  for (const char letter : line) {
    if (letter == ',') {
      fields.emplace_back();
    } else if (letter != '\r') {
      fields.back() += letter;
    }
  }
  return fields;
}

/// A model with its metadata: `inputs`, `outputs`, `dtype` and, for a .pt2, `instruction_set`.
struct Model {
  Texts texts;
  virtual ~Model() = default;
  virtual at::Tensor forward(const at::Tensor& x) = 0;   // (B, I) to (B, O)
  virtual at::Tensor jacobian(const at::Tensor& x) = 0;  // (B, I) to (B, O, I)
};

struct Scripted : Model {
  torch::jit::Module module;

  explicit Scripted(const std::string& file) {
    torch::jit::ExtraFilesMap extra{{"inputs", ""}, {"outputs", ""}, {"dtype", ""}};
    module = torch::jit::load(file, torch::kCPU, extra);
    for (const auto& [name, text] : extra) texts[name] = text;
  }
  at::Tensor forward(const at::Tensor& x) override { return module.forward({x}).toTensor(); }
  at::Tensor jacobian(const at::Tensor& x) override { return module.get_method("jacobian")({x}).toTensor(); }
};

/// The flags of the processor of this machine, as Linux names them.
std::set<std::string> processor_flags() {
  std::set<std::string> flags;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && flags.empty();) {
    if (line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0) {
      for (const auto& flag : words(line.substr(line.find(':') + 1))) flags.insert(flag);
    }
  }
  return flags;
}

struct Compiled : Model {
  std::unique_ptr<Loader> forward_model, jacobian_model;

  explicit Compiled(const std::string& file) {
    texts = Loader::load_metadata_from_package(file, "forward");
    const auto flags = processor_flags();
    const auto needed = words(texts.at("instruction_set"));  // the machine's name, then flags
    for (size_t number = 1; number < needed.size(); ++number) {
      if (!flags.count(needed[number])) {
        throw std::runtime_error(file + " was compiled for a processor with " + needed[number] +
                                 ", which this one lacks: export the member again on this machine");
      }
    }
    forward_model = std::make_unique<Loader>(file, "forward", true);
    jacobian_model = std::make_unique<Loader>(file, "jacobian", true);
  }
  at::Tensor forward(const at::Tensor& x) override { return forward_model->run({x}).at(0); }
  at::Tensor jacobian(const at::Tensor& x) override { return jacobian_model->run({x}).at(0); }
};

std::unique_ptr<Model> load(const std::string& file) {
  if (!std::ifstream(file)) throw std::runtime_error(file + " cannot be read: check the path");
  const auto suffix = file.substr(std::min(file.size(), file.rfind('.')));
  if (suffix == ".ts") return std::make_unique<Scripted>(file);
  if (suffix == ".pt2") return std::make_unique<Compiled>(file);
  throw std::runtime_error(file + " is not a .ts or .pt2 file: name one that scripts/export_model.py wrote");
}

at::Tensor read_csv(const std::string& file, const std::vector<std::string>& names) {
  std::ifstream stream(file);
  std::string line;
  if (!std::getline(stream, line)) throw std::runtime_error(file + " cannot be read or is empty: check the path");
  if (fields_of(line) != names) {
    throw std::runtime_error(file + " has other columns than the model, which needs " + [&] {
      std::string all;
      for (const auto& name : names) all += (all.empty() ? "" : ",") + name;
      return all;
    }());
  }
  std::vector<double> values;
  int64_t num_rows = 0;
  while (std::getline(stream, line)) {
    if (words(line).empty()) continue;
    const auto fields = fields_of(line);
    ++num_rows;
    if (fields.size() != names.size()) {
      throw std::runtime_error(file + ": row " + std::to_string(num_rows) + " has " + std::to_string(fields.size()) +
                               " values, not " + std::to_string(names.size()));
    }
    for (size_t column = 0; column < names.size(); ++column) {
      const auto& field = fields[column];
      if (words(field).empty()) {
        throw std::runtime_error(file + ": row " + std::to_string(num_rows) + " has no value for " + names[column] +
                                 ": write a number or nan");
      }
      char* end = nullptr;
      errno = 0;
      values.push_back(std::strtod(field.c_str(), &end));
      const bool overflows = errno == ERANGE && std::isinf(values.back());
      if (overflows || end != field.c_str() + field.size()) {
        throw std::runtime_error(file + ": '" + field + "' in row " + std::to_string(num_rows) + " is not a number");
      }
    }
  }
  return torch::tensor(values, torch::kFloat64).reshape({num_rows, static_cast<int64_t>(names.size())});
}

void print(const at::Tensor& y, const at::Tensor& jacobian, const std::vector<std::string>& inputs,
           const std::vector<std::string>& outputs) {
  std::string line;
  for (const auto& output : outputs) line += (line.empty() ? "" : ",") + output;
  for (const auto& output : outputs) {
    for (const auto& input : inputs) line += ",d" + output + "/d" + input;
  }
  std::cout << line << '\n';
  const auto table = torch::cat({y, jacobian.flatten(1)}, 1).to(torch::kFloat64).contiguous();
  const auto* value = table.const_data_ptr<double>();
  char text[32];
  for (int64_t row = 0; row < table.size(0); ++row) {
    for (int64_t column = 0; column < table.size(1); ++column) {
      std::snprintf(text, sizeof text, "%s%.17g", column ? "," : "", *value++);
      std::cout << text;
    }
    std::cout << '\n';
  }
}

double seconds(const std::function<void()>& work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void time(Model& model, const at::Tensor& rows) {
  const auto one = rows.slice(0, 0, 1).contiguous();
  const auto many = rows.repeat({100'000 / rows.size(0) + 1, 1}).slice(0, 0, 100'000).contiguous();
  const std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&)>>> methods{
      {"forward", [&](const at::Tensor& x) { return model.forward(x); }},
      {"jacobian", [&](const at::Tensor& x) { return model.jacobian(x); }}};
  std::string line;
  for (const auto& [name, method] : methods) {
    std::vector<double> one_row, many_rows;
    for (int round = 0; round < 300; ++round) method(one);
    for (int round = 0; round < 2000; ++round) one_row.push_back(seconds([&] { method(one); }));
    for (int round = 0; round < 7; ++round) many_rows.push_back(seconds([&] { method(many); }));
    char text[160];
    std::snprintf(text, sizeof text, "%s\"%s\": {\"one_us\": %.3f, \"100k_s\": %.5f}", line.empty() ? "{" : ", ",
                  name.c_str(), 1e6 * median(one_row), median(many_rows));
    line += text;
  }
  std::cout << line << "}\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4 || (argc == 4 && std::string(argv[3]) != "time")) {
    std::cerr << "usage: emulate MODEL.ts|MODEL.pt2 INPUT.csv [time]\n";
    return 2;
  }
  try {
    const torch::InferenceMode guard;
    at::set_num_threads(1);
    const auto model = load(argv[1]);
    const auto inputs = words(model->texts.at("inputs")), outputs = words(model->texts.at("outputs"));
    const auto dtype = model->texts.at("dtype") == "float64" ? torch::kFloat64 : torch::kFloat32;
    const auto x = read_csv(argv[2], inputs).to(dtype);
    if (argc == 4 && x.size(0) == 0) {
      throw std::runtime_error(std::string(argv[2]) + " has no rows, and the time of one is needed: add a row");
    }
    if (argc == 4) {
      time(*model, x);
    } else {
      print(model->forward(x), model->jacobian(x), inputs, outputs);
    }
  } catch (const c10::Error& error) {
    std::cerr << "error: " << argv[1] << " is damaged, or does not fit this libtorch ("
              << error.what_without_backtrace() << "): export the member again\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  }
}
