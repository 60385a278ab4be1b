"""A pretrained text encoder from transformers, from the tokenizer in the panel to the weights in the checkpoint."""

import dataclasses
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from safetensors.torch import load_file
from small_market import market_config

from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.neural import loop
from ensemble.neural.predict import NeuralMember
from ensemble.neural.settings import config_class
from ensemble.recipes.hot_sellers import prepare, pretrained
from ensemble.recipes.hot_sellers.model import PretrainedTextEncoder
from ensemble.recipes.hot_sellers.settings import PanelConfig, RecipeConfig
from ensemble.recipes.hot_sellers.training import make

torch.set_num_threads(1)
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed (the extra `text`)"
)
WORDS = "the a and it i is was this of to for great good bad love like product works would again very".split()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BERT of one layer and its WordPiece vocabulary."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    letters = "abcdefghijklmnopqrstuvwxyz'.,!0123456789"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(vocabulary)), encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(dict.fromkeys(vocabulary)),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(encoder: Path, raw_market: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The market, tokenised by the encoder's tokenizer."""
    folder = tmp_path_factory.mktemp("pretrained") / "prepared"
    settings = PanelConfig(top_fraction=0.1, num_tokens=8, tokenizer=str(encoder))
    prepare.prepare(market_config(raw_market, folder, settings))
    return folder


def config(data: Path, encoder: Path, out: Path, **settings: Any) -> Any:
    of_recipe = RecipeConfig(width=8, num_layers=1, num_reviews=2, dropout=0.0, text_encoder=str(encoder), **settings)
    learning = {"batch_size": 64, "max_epochs": 0.3, "learning_rate": 0.01, "warmup_steps": 1, "log_every": 1}
    return config_class("hot_sellers")(data=str(data), out=str(out), recipe=of_recipe, **learning)


@needs_transformers
def test_the_panel_holds_the_tokenizers_ids(data: Path, encoder: Path, raw_market: tuple[Path, Path]) -> None:
    """The encoder would read hashed words, or texts cut without their closing token."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(encoder))
    stored = {tuple(tokens) for tokens in open_table(data / "reviews")["tokens"].to_pylist()}
    lines = (json.loads(line) for line in raw_market[0].read_text().splitlines()[:50])
    texts = [f"{line['title']} {line['text']}" for line in lines]
    expected = tokenizer(texts, padding="max_length", truncation=True, max_length=8)["input_ids"]
    assert {tuple(tokens) for tokens in expected} <= stored


@needs_transformers
@pytest.mark.parametrize(
    ("frozen", "recompute"), [(True, False), (False, False), (False, True)], ids=["frozen", "fine-tuned", "recomputed"]
)
def test_an_encoder_is_frozen_or_fine_tuned(
    frozen: bool, recompute: bool, data: Path, encoder: Path, accelerator: Accelerator, tmp_path: Path
) -> None:
    """A frozen encoder would change, a fine-tuned one would not, or predictions would use earlier weights."""
    settings = config(data, encoder, tmp_path / "run", freeze_text=frozen, gradient_checkpointing=recompute)
    summary = loop.train(make(settings.recipe, str(data)), settings, accelerator)
    assert summary["steps"] > 3
    before = load_file(encoder / "model.safetensors")
    after = load_file(tmp_path / "run/best/model.safetensors")
    read = [name for name in before if "pooler" not in name]
    same = {name: torch.equal(after[f"text_encoder.encoder.{name}"], before[name]) for name in read}
    assert len(same) > 10
    assert all(same.values()) if frozen else not any(same.values())
    assert torch.isfinite(after["text_encoder.project.weight"]).all()
    predictions = NeuralMember(tmp_path / "run", accelerator, data).predict(data, "test")
    assert np.isfinite(predictions["prediction"]).all()


@needs_transformers
@pytest.mark.parametrize("frozen", [True, False])
def test_every_trainable_parameter_gets_a_gradient(frozen: bool, data: Path, encoder: Path, tmp_path: Path) -> None:
    """On two ranks fine-tuning would stop at the second step: BERT's pooler is never used."""
    neural_recipe = make(config(data, encoder, tmp_path, freeze_text=frozen).recipe, str(data))
    model = neural_recipe.model()
    loss_sum, _, _ = neural_recipe.step(model, neural_recipe.rows("train").gather(np.arange(32)), None)
    loss_sum.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None] == []
    trained = any(parameter.grad is not None for parameter in model.text_encoder.encoder.parameters())
    assert trained is not frozen


@needs_transformers
def test_recomputing_changes_no_gradient(data: Path, encoder: Path, tmp_path: Path) -> None:
    """gradient_checkpointing would leave the encoder out of the gradient."""
    gradients = []
    for recompute in (False, True):
        neural_recipe = make(
            config(data, encoder, tmp_path, freeze_text=False, gradient_checkpointing=recompute).recipe, str(data)
        )
        torch.manual_seed(0)
        model = neural_recipe.model().train()
        loss_sum, _, _ = neural_recipe.step(model, neural_recipe.rows("train").gather(np.arange(32)), None)
        loss_sum.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.linalg.norm(gradients[0] - gradients[1]) <= 1e-6 * torch.linalg.norm(gradients[0])


@needs_transformers
def test_padding_does_not_change_what_is_read(encoder: Path, data: Path, tmp_path: Path) -> None:
    """A short review would be read otherwise in a batch of long ones."""
    torch.manual_seed(0)
    reader = make(config(data, encoder, tmp_path).recipe, str(data)).model().text_encoder.eval()
    words = torch.tensor([[2, 7, 8, 3]])
    padded = F.pad(words, (0, 4))
    with torch.no_grad():
        assert torch.allclose(reader(words), reader(padded), atol=1e-6)
        assert torch.isfinite(reader(torch.zeros_like(padded))).all()


@needs_transformers
@pytest.mark.parametrize("padding", [None, 7])
def test_padding_is_that_of_the_tokenizer(padding: int | None, encoder: Path, tmp_path: Path) -> None:
    """An encoder without a padding id, as of Llama or Qwen, would end in a traceback, and with another one read padding."""
    copy = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(settings | {"pad_token_id": padding}))
    of_copy, of_encoder = (PretrainedTextEncoder(pretrained.load("AutoModel", str(one)), 4, True) for one in (copy, encoder))
    of_copy.load_state_dict(of_encoder.state_dict())
    words = torch.tensor([[2, 7, 8, 3, 0, 0], [2, 9, 7, 9, 8, 3]])
    with torch.no_grad():
        assert torch.equal(of_copy.eval()(words), of_encoder.eval()(words))


@needs_transformers
def test_of_two_stacks_the_encoder_reads_the_texts(encoder: Path, tmp_path: Path) -> None:
    """Any training with T5 would end in a traceback, since its decoder has no input."""
    from transformers import T5Config, T5Model

    copy = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    T5Model(T5Config(vocab_size=100, pad_token_id=7, **sizes)).save_pretrained(copy)
    reader = PretrainedTextEncoder(pretrained.load("AutoModel", str(copy)), 4, frozen=False).eval()
    words = torch.tensor([[2, 7, 8, 3]])
    read = reader(words)
    read.sum().backward()
    assert torch.allclose(reader(F.pad(words, (0, 4))), read, atol=1e-6)
    assert [name for name, parameter in reader.named_parameters() if parameter.grad is None] == []


@needs_transformers
def test_an_encoder_in_bfloat16_is_read_in_float32(encoder: Path, tmp_path: Path) -> None:
    """Any training would end in a traceback, since the projection is in float32."""
    from transformers import BertModel

    copy = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    BertModel.from_pretrained(encoder).bfloat16().save_pretrained(copy)
    reader = PretrainedTextEncoder(pretrained.load("AutoModel", str(copy)), 4, frozen=True)
    assert reader(torch.tensor([[2, 7, 8, 3]])).dtype == torch.float32


@needs_transformers
def test_more_tokens_than_the_encoder_has_positions_are_refused(
    encoder: Path, raw_market: tuple[Path, Path], tmp_path: Path
) -> None:
    """The data would be prepared, and each training on them end in a traceback."""
    copy = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 16}))
    panel = PanelConfig(num_tokens=17, tokenizer=str(copy))
    with pytest.raises(UserError, match=r"panel.num_tokens=17 is impossible: it must be at most 16, .*encoder'$"):
        prepare.prepare(market_config(raw_market, tmp_path / "out", panel))
    assert not (tmp_path / "out").exists()


@needs_transformers
@pytest.mark.parametrize("num_tokens", [1, 2])
def test_too_few_tokens_for_a_word_are_refused(
    num_tokens: int, encoder: Path, raw_market: tuple[Path, Path], tmp_path: Path
) -> None:
    """The preparation would end in a traceback of NumPy, or the network would read no word of any review."""
    panel = PanelConfig(num_tokens=num_tokens, tokenizer=str(encoder))
    with pytest.raises(UserError, match=rf"panel.num_tokens={num_tokens} is impossible: .* more than the 2 tokens that '/"):
        prepare.prepare(market_config(raw_market, tmp_path / "out", panel))


@needs_transformers
def test_the_whole_path_of_a_folder_is_recorded(
    encoder: Path, raw_market: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forecasts in another current folder would not find the tokenizer, and no setting could name it."""
    monkeypatch.chdir(encoder.parent)
    panel = PanelConfig(top_fraction=0.1, num_tokens=8, tokenizer=encoder.name)
    manifest = prepare.prepare(market_config(raw_market, tmp_path / "out", panel))
    assert manifest["config"]["tokenizer"] == str(encoder)


@needs_transformers
def test_encoder_and_tokenizer_must_be_the_same(data: Path, prepared: Path, encoder: Path, tmp_path: Path) -> None:
    """Ids of one vocabulary would be looked up in another."""
    settings = config(data, encoder, tmp_path).recipe
    with pytest.raises(
        UserError, match=rf"text_encoder={encoder} is impossible: it must be '', as panel.tokenizer of the data"
    ):
        make(settings, str(prepared))
    with pytest.raises(
        UserError, match=r"recipe.text_encoder='' is impossible: it must be '/.*', as panel.tokenizer of the data"
    ):
        make(dataclasses.replace(settings, text_encoder=""), str(data))


@needs_transformers
@pytest.mark.parametrize("content", [None, {}, {"config.json": "{"}, {"config.json": '{"model_type": "nonsense"}'}])
@pytest.mark.parametrize("kind", ["AutoModel", "AutoTokenizer"])
def test_an_encoder_that_is_not_there_is_named(
    kind: str, content: dict[str, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong path would end in transformers' traceback, or in a wait for the network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "encoder"
    for name, text in (content or {}).items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    if content == {}:
        folder.mkdir()
    with pytest.raises(UserError, match=rf"the text encoder '{folder}' .*: give another folder") as raised:
        pretrained.load(kind, str(folder))
    assert "\n" not in str(raised.value)


@needs_transformers
@pytest.mark.parametrize(
    ("kind", "file", "content"),
    [
        ("AutoModel", "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c\n"),
        ("AutoModel", "config.json", '{"model_type": "bert", "hidden_size": 12, "num_hidden_layers": 1, "vocab_size": 9}'),
        ("AutoTokenizer", "tokenizer.json", "{}"),
    ],
)
def test_a_damaged_file_is_a_user_error(kind: str, file: str, content: str, encoder: Path, tmp_path: Path) -> None:
    """An encoder that was cloned without Git LFS, or with a configuration of another size, would end in a traceback."""
    copy = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    (copy / file).write_text(content)
    with pytest.raises(UserError, match=rf"the text encoder '{copy}' cannot be read .*: give another folder"):
        pretrained.load(kind, str(copy))


@needs_transformers
def test_a_tokenizer_without_padding_is_refused(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizers such as that of GPT-2 would end in transformers' traceback."""
    tokenizer = pretrained.load("AutoTokenizer", str(encoder))
    tokenizer.pad_token = None
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda name: tokenizer)
    with pytest.raises(UserError, match="has no padding token"):
        pretrained.load("AutoTokenizer", str(encoder))


@needs_transformers
def test_a_library_that_a_tokenizer_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SentencePiece, tokenizers such as that of SigLIP would end in transformers' traceback."""

    def load(name: str) -> None:
        raise ImportError("\nSiglipTokenizer requires the SentencePiece library")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", load)
    with pytest.raises(UserError, match=r"'siglip' cannot be read .*\(SiglipTokenizer requires the SentencePiece library\)"):
        pretrained.load("AutoTokenizer", "siglip")


def test_without_transformers_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person without the extra would see ModuleNotFoundError."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs transformers: pip install 'accelerate-ensemble\[text\]'"):
        pretrained.load("AutoModel", "anything")
