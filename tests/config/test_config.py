"""Configuration: precedence, and one-line answers to mistakes in the user's own spelling."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.cli.configuration import resolve
from recsys_moe.config.files import configs_folder, merge, read_config_file
from recsys_moe.config.settings import Config, ConfigError, parse_config
from recsys_moe.routers import ROUTERS

SHIPPED = sorted(configs_folder().glob("*.yaml"))
SCHEMA = Config.model_json_schema()
ROUTER = """
from recsys_moe.routers import Router, RouterConfig
class Mine(Router):
    class Config(RouterConfig): pass
    summary = "mine"
    def forward(self, x_BD, user_B=None): pass
"""


def test_defaults_are_the_papers_movielens_model() -> None:
    config = Config()
    assert config.model.router.name == "moesart"
    model = config.model
    assert (model.num_experts, model.expert_dim, model.dropout) == (16, 256, 0.5)
    assert (config.trainer.batch_size, config.optim.eps) == (512, 1e-7)


def test_file_overrides_defaults_and_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("optim: {lr: 1e-3}\ntrainer: {batch_size: 64, seed: 5}\n")
    config = resolve(str(file), None, {"trainer.seed": 6}, ["trainer.batch_size=32"])
    assert (config.optim.lr, config.trainer.batch_size, config.trainer.seed) == (1e-3, 32, 6)
    assert config.trainer.max_epochs == Config().trainer.max_epochs


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_config_loads_and_opens_with_its_command(path: Path) -> None:
    raw = read_config_file(path.stem)
    parse_config(raw)
    jsonschema.validate(raw, SCHEMA)
    assert "# recsys-moe fit" in path.read_text()


def test_yaml_round_trip_keeps_everything() -> None:
    config = parse_config({"model": {"router": {"name": "topk", "k": 3}}, "optim": {"lr": 0.1}})
    assert parse_config(yaml.safe_load(config.to_yaml())) == config


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.router.kk=2", "model.router: unknown key 'kk'.*'k'"),
        ("trainer.max_epoch=2", "did you mean 'max_epochs'?"),
        ("optimm.lr=1", "unknown key 'optimm'.*'optim'"),
        ("model.router.name=topkk", "did you mean 'topk'?"),
        ("model.router.name=no.such:Thing", "cannot be imported"),
        ("model.router.name=pathlib:Path", "must be a subclass of"),
        ("model.router.k=17", "1..model.num_experts=16, got 17"),
        ("model.router.k=1", "at .*got 1"),
        ("model.num_experts=1", "num_experts .*got 1"),
        ("model.router.temperature=0", "0, got 0; e.g. model.router.temperature=0.2"),
        ("model.router.k=2.5", "model.router.k: .*integer.*got 2.5.*model.router.k=2"),
        ("model.router.k=true", "a number .*got true.*model.router.k=2"),
        ("model.router.temperature=true", "not a switch, got true"),
        ("model.tower_dims=[true]", r"not .*got \[True\]"),
        ("model.router.strategy=iv", "'iii' .*got 'iv'.*model.router.strategy=3"),
        ("model.router.name=3", "must .*got '3'"),
        ("model.router.name=[1]", "must .*got '\\[1\\]'"),
        ("model.router.name=:X", "must .*got ':X'"),
        ("model.router.name=.mod:X", "must .*got '.mod:X'"),
        ("model.router.name='mod:'", "must .*got 'mod:'"),
        ("model.router.name=mod:", "must .*got 'mod:'"),
        ("model.name=mods:", "must look like package.module:Class, got 'mods:'"),
        ("model.router.name=recsys_moe.routers:Router", "`forward` .*`Config`"),
        ("model.dropout=1", "model.dropout: .*less .*got 1.*model.dropout=0.5"),
        ("optim.lr=fast", "optim.lr: .*number.*, got 'fast'"),
        ("optim.lr=.nan", "optim.lr"),
        ("tasks.watch.weight=-1", "tasks.watch.weight: .*got -1.*tasks.watch.weight=0.9"),
        ("tasks.watch.wieght=1", "tasks.watch: unknown key 'wieght'.*'weight'"),
        ("tasks=3", "got 3; e.g. tasks={.watch"),
        ("trainer=3", "trainer: .*got 3"),
        ("model=3", "model: "),
        ("model.router=5", "model.router .*got 5"),
        ("optim.lr", "--set .*got 'optim.lr'"),
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


@pytest.mark.parametrize(
    ("name", "told"),
    [("quickstrat", "did you mean 'quickstart'"), ("mine.yaml", "known: books, .*quickstart")],
)
def test_an_unknown_config_name_is_told_the_shipped_ones(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"no such file, and no shipped config.*{told}"):
        read_config_file(name)


@pytest.mark.parametrize("name", ["topk", "xmoe"])
def test_router_flag_keeps_k_of_the_file_alone_and_says_what_it_drops(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """xmoe has a temperature too: where a learned one starts, 0.3 and not 2."""
    file = tmp_path / "a.yaml"
    file.write_text("model: {router: {name: moesart, k: 3, temperature: 2.0}}\n")
    with caplog.at_level("INFO", logger="recsys_moe.fit"):
        router = resolve(str(file), name, {}, []).model.router.model_dump()
    assert router["name"] == name and router["k"] == 3
    assert router.get("temperature", 0.3) == 0.3
    assert "temperature" in caplog.text


def test_what_is_typed_beside_the_router_flag_is_never_dropped() -> None:
    with pytest.raises(ConfigError, match="unknown key 'k'"):
        resolve(None, "softmax", {}, ["model.router.k=3"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("syntax", "def (", "cannot be imported: SyntaxError"),
        (
            "raises",
            "raise RuntimeError('bang')",
            "RuntimeError: bang; .*`python -c 'import raises'`",
        ),
        (
            "no_config",
            ROUTER.replace("class Config", "class Settings"),
            "must have a `Config` derived from",
        ),
        ("no_summary", ROUTER.replace("summary", "title"), "must have a one-line `summary`"),
        ("no_forward", ROUTER.replace("forward", "route"), "must have a `forward`"),
    ],
)
def test_a_broken_router_from_outside_is_named_with_what_it_lacks(
    name: str, text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"model.router.name '{name}:Mine' .*{message}"):
        resolve(None, None, {}, [f"model.router.name={name}:Mine"])


@pytest.mark.parametrize("name", [*ROUTERS, "mine.file:Router"])
def test_the_schema_accepts_the_name_of_a_router_and_its_section(name: str) -> None:
    settings = ROUTERS[name].Config().model_dump(mode="json") if name in ROUTERS else {"x": 1}
    jsonschema.validate({"model": {"router": name}}, SCHEMA)
    jsonschema.validate({"model": {"router": {**settings, "name": name}}}, SCHEMA)


@pytest.mark.parametrize(
    "router",
    ["topkk", {"name": "topkk"}, {"name": "topk", "gamma": 1}, {"gamma": 1}, {"k": "two"}, 5],
)
def test_the_schema_refuses_what_the_configuration_refuses(router: object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": {"router": router}}, SCHEMA)
    with pytest.raises(ConfigError):
        parse_config({"model": {"router": router}})


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_the_commented_yaml_explains_every_key_and_reads_back(name: str) -> None:
    config = resolve(None, name, {}, [])
    text = config.to_yaml(comments=True)
    assert parse_config(yaml.safe_load(text)) == config
    section = text[text.index("router:") : text.index("# Per task name")]
    for key in set(type(config.model.router).model_fields) - {"name"}:
        assert re.search(rf"    # .*\n    {key}: ", section), key


def test_the_commented_yaml_states_ranges_and_choices() -> None:
    text = " ".join(Config().to_yaml(comments=True).replace("#", "").split())
    assert "to differ. [> 0] temperature: 0.2" in text and "[>= 0, < 1] dropout: 0.5" in text
    assert "One of sparse, dense, sampled. inference: sparse" in text


def test_topk_with_one_expert_is_remarked_once_per_command(
    caplog: pytest.LogCaptureFixture,
) -> None:
    resolve(None, "topk", {"model.router.k": 1}, [])
    assert [record.message.count("no gradient") for record in caplog.records] == [1]
    assert "use k=2" in caplog.text
    caplog.clear()
    resolve(None, "topk", {}, [])
    assert not caplog.records


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


def test_yaml_with_aliases_or_without_end_is_refused_at_once(tmp_path: Path) -> None:
    """Nine lines, each ten times the one before: a billion values for a reader of aliases."""
    bomb = "a0: &a0 [1]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
    )
    (tmp_path / "bomb.yaml").write_text(bomb)
    with pytest.raises(ConfigError, match=r"aliases \(\*name\) are not accepted"):
        read_config_file(str(tmp_path / "bomb.yaml"))
    (tmp_path / "deep.yaml").write_text("[" * 1500)
    with pytest.raises(ConfigError, match="is not valid YAML"):
        read_config_file(str(tmp_path / "deep.yaml"))


def test_a_bare_router_name_keeps_its_name_beside_other_keys() -> None:
    config = resolve(None, None, {"model.router.k": 3}, ["model.router=topk"])
    assert (config.model.router.name, config.model.router.k) == ("topk", 3)


def test_a_removed_setting_is_read_at_its_default_and_refused_else() -> None:
    old = {
        "trainer": {"shard_embeddings": False, "max_epochs": 3},
        "optim": {"embeddings": "lazy"},
    }
    assert parse_config(old) == parse_config({"trainer": {"max_epochs": 3}})
    with pytest.raises(
        ConfigError, match=r"^trainer.shard_embeddings .*false.*TorchRec or DTensor"
    ):
        parse_config({"trainer": {"shard_embeddings": True}})


def test_a_batch_that_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"multiple .*got 64"):
        parse_config({"trainer": {"batch_size": 64, "devices": 3, "num_nodes": 2}})
