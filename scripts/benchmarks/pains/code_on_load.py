"""A checkpoint runs code when it is loaded, or reads files outside of its folder: accelerate#3036, #4067.

Each file of a checkpoint in turn is replaced by a pickle that leaves a mark when it is unpickled, as the author of a
checkpoint could do; one more checkpoint names a weights file outside of its folder. Of this project's checkpoints the
checksums are made to agree, and files are added under the names of Accelerate's.
"""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

from benchmarks.pains import rows, sides

THREADS = ("accelerate#3036", "accelerate#4067", "GHSA-4j2p-28q2-5m79")
MARK = "mark"


class Payload:
    """What runs when it is unpickled makes a folder."""

    def __init__(self, mark: Path):
        self.mark = str(mark)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.mark,)


def rank(settings: Any) -> None:
    """Save a checkpoint with an object registered for it, and load it with each of its files replaced."""
    import torch
    from accelerate import Accelerator, load_checkpoint_in_model
    from safetensors.torch import save_file

    from benchmarks.pains.recipe.model import Shares

    class Counter:
        steps = 3

        def state_dict(self) -> dict[str, int]:
            return {"steps": self.steps}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.steps = state["steps"]

    out = Path(settings.out)
    accelerator = Accelerator(cpu=True)
    model: Any = Shares(8)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    accelerator.register_for_checkpointing(Counter())
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


def reproduce(folder: Path, short: bool) -> dict[str, Any]:
    from ensemble import folders

    outcome = folders.read_json(sides.plain("code_on_load", folder / "plain", ranks=1) / "outcome.json")
    plain = sides.Side(code_run=len(outcome["ran"]), outside=outcome["outside"], note=", ".join(outcome["ran"]) or "none")
    return {"plain": plain, "here": here(folder, outcome["ran"], short)}


def here(folder: Path, names: list[str], short: bool) -> sides.Side:
    """Resume from checkpoints of this project that were tampered with; each must be refused, or be loaded without harm."""
    from ensemble import folders

    data = sides.prepared(folder.parent)
    sides.here(data, folder / "sound", ranks=1, max_epochs=0.1)
    (sound,) = (folder / "sound" / "checkpoints").iterdir()
    outside, marks = folder / "outside.safetensors", folder / "marks"
    shutil.copy(sound / "model.safetensors", outside)
    marks.mkdir()

    def resume(name: str) -> tuple[int, str]:
        command = sides.train_command(
            data,
            folder / f"after-{name}",
            sides.launcher(1),
            "--resume",
            str(folder / name),
            "--resume-override",
            max_epochs=0.2,
        )
        return sides.attempt(command)

    replaced = Path(shutil.copytree(sound, folder / "replaced"))
    for file in ("model.safetensors", "state.safetensors"):
        (replaced / file).write_bytes(pickle.dumps(Payload(marks / file)))
    sides.sign(replaced)
    added = Path(shutil.copytree(sound, folder / "added"))
    for file in (*names, "optimizer.bin", "pytorch_model.bin", "random_states_0.pkl", ".metadata"):
        (added / file).write_bytes(pickle.dumps(Payload(marks / file)))
    sides.sign(added)
    escaping = Path(shutil.copytree(sound, folder / "escaping"))
    manifest = folders.read_json(escaping / folders.NAME)
    manifest["files"]["../outside.safetensors"] = manifest["files"]["model.safetensors"]
    manifest["fingerprint"] = folders._fingerprint(manifest)
    folders.write_json(escaping / folders.NAME, manifest)

    outcomes = {name: resume(name) for name in ("replaced", "escaping", *(() if short else ("added",)))}
    took = rows.record(sides.record_of(folder / "after-added"))
    assert took or short, outcomes["added"][1]
    return sides.Side(
        code_run=len(list(marks.iterdir())),
        outside=int(outcomes["escaping"][0] == 0),
        seconds=round(took[0]["cpu_s"], 2) if took else None,
        note=", ".join(f"{name}: {'refused' if code else 'loaded'}" for name, (code, _) in outcomes.items()),
    )
