"""The command line: start-up cost, exit codes, one-line errors, JSON everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvassay.cli.app import run
from kvassay.cli.assess import print_verdicts
from kvassay.core.methods import methods as method_table

CONTRACTS = Path(__file__).parents[2] / "contracts"


def write_config(folder: Path, **changes) -> Path:
    """A transformers folder without weights: enough for byte counts and for refusals before loading."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_hidden_layers": 3,
        "max_position_embeddings": 4096,
        "vocab_size": 100,
        **changes,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def one_line_error(capsys, arguments: list[str]) -> str:
    """Run a command that must fail with exit code 2; returns its single line on stderr."""
    code = run(arguments)
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("kvassay: error: ")]
    assert len(lines) == 1
    assert "Traceback" not in captured.err
    return lines[0]


def test_importing_the_package_and_asking_for_help_loads_no_torch() -> None:
    code = (
        "import sys, kvassay\n"
        "from kvassay.cli.app import run\n"
        "run(['--help'])\n"
        "loaded = {'torch', 'transformers', 'scipy', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "command",
    [
        *("assess", "bytes", "capacity", "compare", "contract", "doctor", "experiment", "find", "formats", "judge"),
        *("judge-logs", "lab", "plan", "report", "scales", "verify"),
    ],
)
def test_every_command_explains_itself(command, capsys) -> None:
    assert run([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out or command in ("contract", "experiment", "scales")


def test_bytes_json_equals_the_table(tmp_path, capsys) -> None:
    model = str(write_config(tmp_path / "m"))
    assert run(["bytes", model, "--format", "int4-g64", "--format", "f16", "--context", "128", "--json"]) == 0
    four_bit, plain = json.loads(capsys.readouterr().out)
    paging = 3 * 2 * 2 * 16  # three layers, two sides, two pages
    assert plain["persistent_nbytes"] - paging == plain["float16_nbytes"] == 3 * 128 * 2 * 64 * 2 * 2
    assert four_bit["persistent_nbytes"] - paging == four_bit["float16_nbytes"] * 4.5 / 16
    assert run(["bytes", model, "--format", "int4-g64", "--context", "128"]) == 0
    text = capsys.readouterr().out
    assert f"{four_bit['persistent_nbytes']:,} B" in text
    assert "Assumptions:" in text
    assert "float32" in text


def test_formats_lists_every_preset(capsys) -> None:
    assert run(["formats", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    names = {row["name"] for row in rows}
    assert {"int8-token-head", "kivi-4", "q4_0"} <= names
    assert run(["formats"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in names)


def test_formats_lists_every_method_with_its_examples(capsys) -> None:
    assert run(["formats", "--methods", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    examples = [text for method in method_table().values() for text in method.examples]
    assert [row["codec"] for row in rows] == examples
    assert all(row["source"] and row["summary"] for row in rows)
    assert run(["formats", "--methods", "--head-dim", "80"]) == 0
    assert any(line.split()[:2] == ["q4_0", "-"] for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bytes", "MODEL", "--format", "kivi-5"], "format 'kivi-5' is unknown; did you mean 'kivi-4'?"),
        (["bytes", "MODEL", "--format", "int4-g64", "--context", "0"], "context"),
        (["bytes", "MODEL", "--format", "int4-g64", "--context", "1.5"], "--context: '1.5' is not a whole number"),
        (["bytes", "MODEL", "--format", "int4-g64", "--batch", "2.0"], "--batch: '2.0' is not a whole number"),
        (["capacity", "MODEL", "--format", "f16", "--budget", "1GiB", "--context", "1e3"], "is not a whole number"),
        (["formats", "--head-dim", "64.4"], "--head-dim: '64.4' is not a whole number"),
        (["doctor", "MODEL", "--tokens", "99.5"], "--tokens: '99.5' is not a whole number"),
        (["scales", "write", "MODEL", "--format", "f16", "--out", "x", "--seed", "0.5"], "'0.5' is not a whole number"),
        (
            ["bytes", "MODEL", "--format", "kv=int4:group48"],
            "head_dim 64 is not a multiple of group 48; use group 32 or 64",
        ),
        (["bytes", "MODEL", "--format", "int8-token,skip=99"], "names layer 99, the model has layers 0 to 2"),
        (["bytes", "MODEL", "--format", "f16", "--format", "int8-token,@3=f16"], "names layer 3, the model has layers"),
        (["bytes", "MODEL", "--format", "int8-token,@1h2=f16"], "names KV head 2 of layer 1, which has heads 0 to 1"),
        (["bytes", "no/such/model", "--format", "f16"], "no/such/model"),
        (["bytes", "/dev/null", "--format", "f16"], "model '/dev/null' is neither a folder nor a plain file"),
        (["bytes", "~nobody-of-this-name/m", "--format", "f16"], "~nobody-of-this-name/m"),
        (["bytes", "MODEL"], "--format"),
        (["nonsense"], "nonsense"),
        (["verify", "MISSING"], "MISSING"),
        (["report", "MISSING", "--out", "x.html"], "MISSING"),
        (["assess", "MODEL", "--contract", "MISSING"], "MISSING"),
        (["plan", "MODEL", "--contract", "MISSING"], "MISSING"),
        (["judge", "MISSING"], "MISSING"),
        (["compare", "MISSING", "MISSING"], "MISSING"),
        (["judge-logs", "MISSING", "MISSING", "--task", "t", "--margin", "0.01"], "MISSING"),
        (["contract", "check", "MISSING"], "MISSING"),
        (["assess", "MODEL"], "kvassay assess needs --contract (see kvassay assess --help)"),
        (["assess", "MODEL", "--contract"], "kvassay assess needs a value for --contract (see kvassay assess --help)"),
        (["formats", "kivi-4"], "kvassay formats takes no 'kivi-4' (see kvassay formats --help)"),
        (["scales", "shw"], "(see kvassay scales --help)"),
        (
            ["bytes", "MODEL", "--format", "int4:group32"],
            "the codec of one side; write kv=int4:group32, or k=...,v=...",
        ),
        (["experiment", "attention-error"], "--out"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = str(write_config(tmp_path / "m"))
    arguments = [model if part == "MODEL" else part for part in arguments]
    assert message in one_line_error(capsys, arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def contract(tmp_path: Path, **replacements: str) -> str:
    text = (CONTRACTS / "demo.toml").read_text()
    for before, after in replacements.values():
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "contract.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("replacement", "config", "message"),
    [
        (("max = 0.01", "max = -0.01"), {}, "fidelity.kl_mean.max: Input should be greater than 0, found -0.01"),
        (("margin = 0.10", "margin = -0.1"), {}, "task.recall.margin"),
        (("ref_floor", "ref_flor"), {}, "task.recall.ref_flor: unknown key"),
        (('"int4-g32"]', '"int4-g31"]'), {}, "format 'int4-g31' is unknown"),
        (
            ("alpha = 0.05", "alpha = 0.05"),
            {"head_dim": 48},
            "head_dim 48 is not a multiple of group 32; use group 24 or 48",
        ),
        (("alpha = 0.05", "alpha = 0.05"), {"max_position_embeddings": 300}, "has a context of 300 tokens"),
        (("alpha = 0.05", "alpha = 0.05"), {"layer_types": ["linear_attention"] * 3}, "linear_attention"),
        (("alpha = 0.05", "alpha = 0.05"), {}, "no weights"),
    ],
)
def test_assess_refuses_before_it_writes(replacement, config, message, tmp_path, capsys) -> None:
    model = str(write_config(tmp_path / "m", **config))
    arguments = ["assess", model, "--contract", contract(tmp_path, change=replacement), "--out", str(tmp_path / "out")]
    assert message in one_line_error(capsys, arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["contract.toml", "m"]


def test_r107_an_existing_output_folder_is_refused_before_any_work(tmp_path, capsys) -> None:
    model = str(write_config(tmp_path / "m"))
    (tmp_path / "out").mkdir()
    arguments = ["assess", model, "--contract", contract(tmp_path), "--out", str(tmp_path / "out")]
    assert "out" in one_line_error(capsys, arguments)
    assert list((tmp_path / "out").iterdir()) == []
    assert "exists" in one_line_error(capsys, ["experiment", "attention-error", "--out", str(tmp_path / "out")])


def test_r105_experiment_and_its_audit_from_the_command_line(tmp_path, capsys) -> None:
    out = str(tmp_path / "e")
    assert run(["experiment", "attention-error", "--out", out, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["rows"]) == 36
    assert run(["verify", out, "--root", result["root"]]) == 0
    assert "verified" in capsys.readouterr().out
    assert run(["verify", out, "--root", "0" * 64, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_module_and_script_are_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "kvassay", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0.1.0"


@pytest.mark.parametrize(("alpha", "level"), [(0.05, "95%"), (0.025, "97.5%"), (0.1, "90%")])
def test_the_level_of_the_bounds_is_the_contracts(alpha, level, capsys) -> None:
    print_verdicts((), {}, 512, alpha)
    assert f"  one-sided {level} bounds  " in capsys.readouterr().out


def test_help_shows_no_default_that_says_nothing_and_no_empty_options(capsys) -> None:
    for command in (["assess"], ["find"], ["plan"], ["run"], ["contract", "init"]):
        assert run([*command, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "--empty-" not in text
        assert not any(f"[default: {nothing}]" in text for nothing in ("None", "False", "()", "[]"))
    assert run(["run", "--help"]) == 0
    assert "[default: local]" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_help_groups_commands_and_says_where_to_begin(capsys) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(part) for part in ("kvassay assess MODEL --contract", "Judge a model", "Options", "--version")]
    assert places == sorted(places)
    assert text.index("│ assess") < text.index("│ contract") < text.index("│ formats") < text.index("│ verify")
