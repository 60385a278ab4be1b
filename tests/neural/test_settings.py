"""The names of the settings, which are in files, job scripts and checkpoints of users."""

import pytest

from ensemble import configuration
from ensemble.errors import UserError
from ensemble.neural.settings import FREE_TO_CHANGE, TrainConfig, config_class
from ensemble.recipe import BUILT_IN, TRAINED, named

NAMES = """
data verify out batch_size micro_batch_size max_epochs learning_rate learning_rate_scaling base_batch_size schedule
warmup_steps decay_steps decay_factor weight_decay clip_norm ema_decay seed refit_epochs evaluations_per_epoch patience
checkpoint_steps keep_last keep_steps precision deterministic nonfinite max_nonfinite spike_factor max_rollbacks
max_seconds timeout_s loader num_workers prefetch_factor bucket_batches compile trackers log_every
""".split()
RECIPE_NAMES = {
    "hot_sellers": """
width num_layers num_heads dropout num_reviews text_layers text_encoder freeze_text gradient_checkpointing loss focal_gamma
weight_growth weight_rating weight_engagement
""".split(),
    "next_item": """
time_aware num_streams max_length width num_layers num_heads widening dropout num_intervals loss num_negatives negative_power
gbce_calibration num_groups
""".split(),
    "sudoku": """
variant mixing positions width num_layers num_heads inner_width high_cycles low_cycles segments predict_segments
halt_probability exploration continue_loss loss images reveal reveal_least reveal_epochs puzzle_embedding puzzle_rate starts
muon_rate
""".split(),
    "emulator": "network widths activation output residual conserve jacobian_weight".split(),
    "table": "num_submodels width num_layers num_bins embedding_size dropout new_rows num_copies".split(),
}


def trained() -> dict[str, type]:
    """The recipes with a network, and their own settings."""
    schemas = {name: named(name).get("settings", "RecipeConfig") for name in BUILT_IN}
    return {name: schema for name, schema in schemas.items() if schema}


def test_the_names_of_the_settings_do_not_change() -> None:
    """A YAML, job script or checkpoint with an old name would be refused: rename only on purpose, and here too."""
    assert list(configuration.field_names(TrainConfig)) == NAMES
    assert {name: list(configuration.field_names(schema)) for name, schema in trained().items()} == RECIPE_NAMES
    assert set(TRAINED) == set(RECIPE_NAMES), "--help of scripts/train.py lists these"


def test_settings_that_may_change_on_resuming_exist() -> None:
    """A renamed setting would be compared, and a change refused without reason."""
    assert {name for name in FREE_TO_CHANGE if not name.startswith("recipe.")} <= set(NAMES)
    nested = {name for recipe in trained() for name in configuration.field_names(config_class(recipe))}
    assert set(FREE_TO_CHANGE) <= nested


def test_the_choices_of_a_list_are_named() -> None:
    """The advice would be to write a list, which the user did."""
    with pytest.raises(UserError, match=r"write a list of some of tensorboard, wandb, trackio, as in 'trackers=\[tensorb"):
        configuration.load(TrainConfig, None, ["data=x", "out=y", "trackers=[foo]"])
