"""Configuration: precedence, and one-line answers to mistakes in the user's own spelling."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.cli.training import resolve
from recsys_moe.config import (
    Config,
    ConfigError,
    configs_folder,
    merge,
    parse_config,
    parse_set,
    read_config_file,
)

SHIPPED = sorted(configs_folder().glob("*.yaml"))


def test_defaults_are_the_papers_movielens_model() -> None:
    config = Config()
    assert config.model.router.name == "moesart"
    assert (config.model.num_experts, config.model.expert_dim, config.model.dropout) == (
        16,
        256,
        0.5,
    )
    assert (config.trainer.batch_size, config.optim.eps, config.trainer.patience) == (512, 1e-7, 25)


def test_file_overrides_defaults_and_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("optim: {lr: 1e-3}\ntrainer: {batch_size: 64, seed: 5}\n")
    config = resolve(str(file), None, {"trainer.seed": 6}, ["trainer.batch_size=32"])
    assert (config.optim.lr, config.trainer.batch_size, config.trainer.seed) == (1e-3, 32, 6)
    assert config.trainer.max_epochs == Config().trainer.max_epochs


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_config_loads_and_opens_with_its_command(path: Path) -> None:
    parse_config(read_config_file(path.stem))
    assert "# recsys-moe fit" in path.read_text()


def test_yaml_round_trip_keeps_everything() -> None:
    config = parse_config({"model": {"router": {"name": "topk", "k": 3}}, "optim": {"lr": 0.1}})
    assert parse_config(yaml.safe_load(config.to_yaml())) == config


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.router.kk=2", "model.router: unknown key 'kk'; did you mean 'k'?"),
        ("trainer.max_epoch=2", "did you mean 'max_epochs'?"),
        ("optimm.lr=1", "unknown key 'optimm'; did you mean 'optim'?"),
        ("model.router.name=topkk", "did you mean 'topk'?"),
        ("model.router.name=no.such:Thing", "cannot be imported"),
        ("model.router.name=pathlib:Path", "must be a subclass of"),
        ("model.router.k=17", "1..model.num_experts=16, got 17"),
        ("model.router.k=1", "at least 2 for moesart, got 1"),
        ("model.router.temperature=0", "model.router.temperature: .*greater than 0, got 0"),
        ("model.dropout=1", "model.dropout: .*less than 1, got 1"),
        ("optim.lr=fast", "optim.lr: .*number.*, got 'fast'"),
        ("optim.lr=.nan", "optim.lr"),
        ("tasks.watch.weight=-1", "tasks.watch.weight: .*, got -1"),
        ("trainer=3", "trainer: "),
        ("model=3", "model: "),
        ("model.router=5", "model.router must be a mapping with a name, got 5"),
        ("optim.lr", "--set must look like section.key=value, got 'optim.lr'"),
        ("=3", "--set must look like"),
        ("optim.lr=[", "is not a YAML value"),
    ],
)
def test_a_mistake_is_answered_in_one_line(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(None, None, {}, [assignment])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", "\x00"])
def test_a_file_that_is_no_mapping_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="bad.yaml"):
        read_config_file(str(file))


def test_an_unknown_config_name_lists_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match="no such file, and no shipped config.*quickstart"):
        read_config_file("quickstrat")


def test_router_flag_keeps_shared_keys_of_the_file_and_says_what_it_drops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("model: {router: {name: moesart, k: 3, temperature: 2.0}}\n")
    with caplog.at_level("INFO", logger="recsys_moe.fit"):
        config = resolve(str(file), "topk", {}, [])
    assert config.model.router.name == "topk" and config.model.router.k == 3  # type: ignore[attr-defined]
    assert "temperature" in caplog.text


def test_what_is_typed_beside_the_router_flag_is_never_dropped() -> None:
    with pytest.raises(ConfigError, match="unknown key 'k'"):
        resolve(None, "softmax", {}, ["model.router.k=3"])


NESTED = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)
MAPPINGS = st.dictionaries(st.sampled_from("abc"), NESTED, max_size=3)


@given(MAPPINGS, MAPPINGS)
def test_merging_lets_the_top_win_and_changes_neither(
    base: dict[str, object], top: dict[str, object]
) -> None:
    before = (repr(base), repr(top))
    merged = merge(base, top)
    assert merge(merged, top) == merged and set(merged) == set(base) | set(top)
    assert (repr(base), repr(top)) == before


def test_a_set_value_is_read_as_yaml() -> None:
    assert parse_set("a.b=[1, 2]") == {"a": {"b": [1, 2]}}
