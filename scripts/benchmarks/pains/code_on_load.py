"""Loading a checkpoint runs code from it, or reads files outside its folder: accelerate#3036, #4067.

Each file of a checkpoint in turn is replaced by a pickle that creates a folder when it is unpickled, as the author of a
checkpoint could do. Another checkpoint names a file of weights outside its folder. Checkpoints of this project are
manipulated in the same way, and get new checksums; one also gets files with the names that Accelerate uses.
"""

import json
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.pains import rows, sides
from benchmarks.runs import launcher
from ensemble import folders

ISSUES = ("accelerate#3036", "accelerate#4067", "GHSA-4j2p-28q2-5m79")
MARK = "mark"
"""The beginning of the names of the folders that unpickled files create."""


class Payload:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = str(mark)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.mark,)


def rank(settings: Any) -> None:
    """Save a checkpoint with a registered object. For each of its files, load a copy in which a pickle replaces this file.

    Then load an index of weights that names a file outside its folder. The results are written to outcome.json.
    """
    import torch
    from accelerate import Accelerator, load_checkpoint_in_model
    from safetensors.torch import save_file

    from benchmarks.pains.recipe.model import Shares

    out = Path(settings.out)
    accelerator = Accelerator(cpu=True)
    model: Any = Shares(8)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    counter = SimpleNamespace(state_dict=lambda: {"steps": 3}, load_state_dict=lambda state: None)
    accelerator.register_for_checkpointing(counter)
    accelerator.save_state(str(out / "sound"))
    ran, refused = [], []
    for file in sorted(path.name for path in (out / "sound").iterdir()):
        folder = out / f"with-{file}"
        shutil.copytree(out / "sound", folder)
        torch.save(Payload(out / f"{MARK}-{file}"), folder / file)
        try:
            accelerator.load_state(str(folder))
        except Exception:  # whatever a damaged file makes the library raise
            refused.append(file)
        if (out / f"{MARK}-{file}").exists():
            ran.append(file)
    (out / "outside").mkdir()
    weights = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    save_file(weights, out / "outside" / "weights.safetensors", metadata={"format": "pt"})
    index = out / "index" / "model.safetensors.index.json"
    index.parent.mkdir()
    index.write_text(json.dumps({"weight_map": dict.fromkeys(weights, "../outside/weights.safetensors")}), encoding="utf-8")
    try:
        load_checkpoint_in_model(model, str(index.parent))
    except ValueError:
        refused.append("weights outside")
    is_read = all(torch.equal(model.state_dict()[name], tensor) for name, tensor in weights.items())
    (out / "outcome.json").write_text(
        json.dumps({"ran": ran, "refused": refused, "outside": int(is_read)}), encoding="utf-8"
    )


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    outcome = folders.read_json(sides.plain("code_on_load", folder / "plain", ranks=1) / "outcome.json")
    plain = sides.Side(code_run=len(outcome["ran"]), outside=outcome["outside"], note=", ".join(outcome["ran"]) or "none")
    return {"plain": plain}, here(folder, outcome["ran"], short)


def here(folder: Path, names: list[str], short: bool) -> sides.Side:
    """Resume from manipulated checkpoints of this project, and count files that ran code or were read from elsewhere.

    names : the files of Accelerate's checkpoint that ran code.
    """
    data = sides.prepared(folder.parent)
    sides.here(data, folder / "sound", ranks=1, max_epochs=0.1)
    (sound,) = (folder / "sound" / "checkpoints").iterdir()
    outside, marks = folder / "outside.safetensors", folder / "marks"
    shutil.copy(sound / "model.safetensors", outside)
    marks.mkdir()

    def resume(name: str) -> tuple[int, str]:
        options = ("--resume", str(folder / name), "--resume-override")
        return sides.attempt(sides.train_command(data, folder / f"after-{name}", launcher(1), *options, max_epochs=0.2))

    ours, foreign = ("model.safetensors", "state.safetensors"), ("optimizer.bin", "pytorch_model.bin", "random_states_0.pkl")
    for name, files in (("replaced", ours), ("added", (*names, *foreign, ".metadata"))):
        manipulated = Path(shutil.copytree(sound, folder / name))
        for file in files:
            (manipulated / file).write_bytes(pickle.dumps(Payload(marks / file)))
        sides.sign(manipulated)
    escaping = Path(shutil.copytree(sound, folder / "escaping"))
    manifest = folders.read_json(escaping / folders.NAME)
    manifest["files"]["../outside.safetensors"] = manifest["files"]["model.safetensors"]
    manifest["fingerprint"] = folders.fingerprint_of(manifest)
    folders.write_json(escaping / folders.NAME, manifest)

    outcomes = {name: resume(name) for name in ("replaced", "escaping", *(() if short else ("added",)))}
    steps = rows.record(sides.record_of(folder / "after-added"))
    assert steps or short, outcomes["added"][1]
    return sides.Side(
        code_run=len(list(marks.iterdir())),
        outside=int(outcomes["escaping"][0] == 0),
        seconds=round(steps[0]["cpu_s"], 2) if steps else None,
        note=", ".join(f"{name}: {'refused' if code else 'loaded'}" for name, (code, _) in outcomes.items()),
    )
