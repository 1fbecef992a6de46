"""The command line: what each command does, and how it says that it cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mtplx_kernel
from mtplx_kernel import cli
from mtplx_kernel.checks import doctor
from mtplx_kernel.errors import ModelUnusable
from tests.tiny import write

LIMIT_S = 120
Ran = tuple[int, str, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "tiny-llama"
    return write("llama", made, max_position_embeddings=100_000)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command line in this process: its exit code and what it wrote to both streams."""

    def ran(*words: str) -> Ran:
        capsys.readouterr()
        code = cli.main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return ran


def test_help_is_there_without_anything_heavy() -> None:
    code = (
        "import sys; from mtplx_kernel import cli\n"
        "assert cli.main(['--help']) == 0\n"
        f"for name in {list(cli.COMMANDS)!r}: assert cli.main([name, '--help']) == 0\n"
        "heavy = {'mlx', 'mlx_lm', 'transformers', 'numpy', 'matplotlib', 'IPython'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    for name, command in cli.COMMANDS.items():
        assert f"mtplx-kernel {name}" in done.stdout
        assert all(f"\n  {option.flag} " in done.stdout for option in command.verb.options)
    assert max(len(line) for line in done.stdout.splitlines()) <= 78


@pytest.mark.parametrize("words", [(), ("-h",), ("help",)])
def test_the_page_lists_the_commands(run: Callable[..., Ran], words: tuple[str, ...]) -> None:
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert all(f"  mtplx-kernel {c.verb.usage}" in out for c in cli.COMMANDS.values())


def test_version(run: Callable[..., Ran]) -> None:
    assert run("--version") == (0, f"mtplx-kernel {mtplx_kernel.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("verfy", "x"), "unknown command 'verfy'; did you mean verify? allowed: fetch, convert, "),
        (("verify",), "a word is missing; write mtplx-kernel verify MODEL [options]"),
        (("fetch", "a", "b"), "that is a word too many; write mtplx-kernel fetch MODEL"),
        (("doctor", "--deep"), "unknown option '--deep'; none is allowed here"),
        (("tune", "x", "--max-depth"), "--max-depth needs a value: --max-depth N"),
        (("bench", "x", "--sealed"), "unknown option '--sealed'; did you mean --head? allowed: "),
        (("tune", "x", "--keep", "--no-keep"), "--keep and --no-keep exclude each other"),
        (("fetch", "no-such-model"), "there is no model 'no-such-model'; allowed are smollm2-135m"),
        (("convert", "x", "y", "--bits", "5"), "--bits is 5; allowed are 4, 6 and 8"),
        (("distill", "x"), "--out is needed: the folder that the head is written to"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    run: Callable[..., Ran], words: tuple[str, ...], message: str
) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"mtplx-kernel: {message}")
    assert err.count("\n") == 1


def test_values_are_refused_in_the_words_of_the_options(
    run: Callable[..., Ran], folder: Path
) -> None:
    code, _, err = run("verify", str(folder), "--prompts", "99")
    assert (code, err) == (
        2,
        "mtplx-kernel: --prompts must be a whole number from 1 to 8, not 99\n",
    )


def test_what_is_no_mistake_of_the_user_is_code_1(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*args: Any, **options: Any) -> Any:
        raise ModelUnusable("it is damaged:\n  a cause")

    monkeypatch.setattr("mtplx_kernel.models.catalog.resolve", damaged)
    assert run("fetch", "x") == (1, "", "mtplx-kernel: it is damaged: a cause\n")


def test_fetch_says_where_the_model_is(run: Callable[..., Ran], folder: Path) -> None:
    assert run("fetch", str(folder)) == (0, f"tiny-llama is in {folder}\n", "")


def test_verify_prints_the_page_and_says_by_its_code_how_it_went(
    run: Callable[..., Ran], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("verify", str(folder), "--prompts", "1", "--max-tokens", "3", "--draws", "2")
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert out.startswith("verified: 2 of 2 answers equal in modes ar and mtp")
    from mtplx_kernel.checks.verify_report import VerifyReport

    monkeypatch.setattr(VerifyReport, "passed", False)
    assert run(*words)[0] == 1


def test_tune_writes_the_picture_and_forgets(
    run: Callable[..., Ran], folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tuning.png"
    words = ("tune", str(folder), "--prompts", "1", "--max-tokens", "18", "--max-depth", "1")
    code, out, err = run(*words, "--picture", str(file), "--head", "none")
    assert (code, err) == (0, "")
    assert out.startswith("best: ")
    assert file.read_bytes().startswith(b"\x89PNG")
    code, out, err = run("tune", str(folder), "--forget")
    assert (code, err) == (0, "")
    assert out == "The tuning is forgotten: the engine chooses the depth itself.\n"
    code, _, err = run(*words, "--picture", str(tmp_path / "missing" / "x.png"))
    assert code == 2
    assert err.startswith(f"mtplx-kernel: --picture cannot be written to {tmp_path}")


def test_bench_prints_the_page_and_writes_the_picture(
    run: Callable[..., Ran], folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "schedulers.png"
    words = ("bench", str(folder), "--prompts", "1", "--max-tokens", "18", "--clients", "1")
    code, out, err = run(*words, "--modes", "hyper", "--picture", str(file), "--head", "none")
    assert (code, err) == (0, "")
    assert out.startswith("best with 1 client: ")
    assert "\nhyper " in out
    assert file.read_bytes().startswith(b"\x89PNG")
    mode = "mtp_cohort_experimental"
    code, _, err = run(*words, "--modes", mode)
    assert code == 2
    assert err.startswith(f"mtplx-kernel: scheduler '{mode}' is experimental and off; to opt in")
    assert run(*words, "--modes", mode, "--experimental-cohorts")[0] == 0


def test_convert_gets_what_was_asked(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def convert(source: str, destination: Path, **options: Any) -> str:
        asked.append((source, destination, options))
        return "a report"

    monkeypatch.setattr("mtplx_kernel.models.convert.convert", convert)
    assert run("convert", "a", "b") == (0, "a report\n", "")
    assert run("convert", "a", "b", "--bits", "4", "--group-size", "32", "--head-bits=8")[0] == 0
    assert asked == [
        ("a", Path("b"), {"bits": None}),
        ("a", Path("b"), {"bits": 4, "group_size": 32, "head_bits": 8}),
    ]


def test_convert_makes_a_folder_that_loads(
    run: Callable[..., Ran], folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "converted"
    code, out, _ = run("convert", str(folder), str(target), "--bits", "8", "--group-size", "32")
    assert code == 0
    assert "model: 8 bits in groups of 32" in out
    with mtplx_kernel.load(target) as engine:
        assert len(engine.generate("abc", max_tokens=3, ignore_eos=True).token_ids) == 3


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--tokens", "x", "--tokens must be a count above 0, such as 5000 or 24M, not 'x'"),
        ("--tokens", "M", "--tokens must be a count above 0, such as 5000 or 24M, not 'M'"),
        ("--batch", "0", "--batch must be a count above 0, such as 5000 or 24M, not '0'"),
        ("--tokens", "infM", "--tokens must be a count above 0, such as 5000 or 24M, not 'infM'"),
        ("--minutes", "inf", "--minutes must be a number above 0, not 'inf'"),
        ("--seed", "-1", "--seed must be a whole number at least 0, not '-1'"),
    ],
)
def test_numbers_of_a_distillation_are_checked_first(
    run: Callable[..., Ran], option: str, value: str, message: str
) -> None:
    words = ("distill", "no-such-model", "--out", "x", option, value)
    assert run(*words) == (2, "", f"mtplx-kernel: {message}\n")


def test_distill_gets_what_was_asked(
    run: Callable[..., Ran], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtplx_kernel.training.distill import Options

    asked: list[Any] = []

    def distill(*given: Any, say: Callable[[str], object]) -> None:
        asked.append(given)
        say("train 100%")

    monkeypatch.setattr("mtplx_kernel.training.distill.distill", distill)
    line = "--tokens 1.5M --batch 8 --depth 2 --minutes 0.5 --draft-vocab 4K --seed 7 "
    line += "--length 512 --conversation 256 --from old"
    code, out, err = run("distill", str(folder), "--out", "head", *line.split())
    assert (code, err) == (0, "train 100%\n")
    assert out == f"The head is in head: load {folder} with --head head\n"
    options = Options(
        tokens=1_500_000,
        length=512,
        conversation=256,
        rows=8,
        depth=2,
        minutes=0.5,
        draft_vocab=4000,
        seed=7,
        begin="old",
    )
    assert asked == [(folder, Path("head"), options)]

    def interrupted(*given: Any, **said: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mtplx_kernel.training.distill.distill", interrupted)
    assert run("distill", str(folder), "--out", "head") == (
        130,
        "",
        "mtplx-kernel: interrupted: the same command goes on from here\n",
    )


def test_doctor_says_what_there_is(run: Callable[..., Ran], tmp_path: Path) -> None:
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    rows = dict(line.split(":", 1) for line in out.splitlines() if not line.startswith(" "))
    assert rows["Versions"].split()[:2] == ["mlx", "0.32.4,"]
    assert rows["Device"].strip() == "cpu"
    assert rows["BLAS"].strip().startswith("MLX's own reference BLAS, 1 thread")
    assert "smollm2-135m" in rows["Models"]
    assert rows["Verdict"].strip() == "all is well"


def test_doctor_names_what_is_wrong(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise ImportError("libmlx.so: cannot open shared object file")

    monkeypatch.setattr(doctor, "_backend", missing)
    # The superuser may write anywhere, so the folder is one that nobody can.
    monkeypatch.setattr(doctor, "_writable", lambda folder: False)
    code, out, _ = run("doctor")
    joined = " ".join(out.split())
    assert code == 1
    assert "Verdict: MLX cannot be imported (libmlx.so: cannot open shared object file)" in joined
    assert "cannot be written: set MTPLX_KERNEL_CACHE" in joined


def test_an_interrupt_is_code_130_and_one_line(folder: Path, tmp_path: Path) -> None:
    # A shell may have started the tests with the interrupt ignored.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from mtplx_kernel import cli\n"
        "from mtplx_kernel.engine.engine import Engine\n"
        "submit = Engine.submit\n"
        "def told(self, *prompt, **options):\n"
        "    print('asking', flush=True)\n"
        "    return submit(self, *prompt, **options)\n"
        "Engine.submit = told\n"
        f"sys.exit(cli.main(['tune', {str(folder)!r}, '--max-tokens', '50000']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MTPLX_KERNEL_CACHE": str(tmp_path)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "asking\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=LIMIT_S)
    assert (child.returncode, err) == (130, "mtplx-kernel: interrupted\n")


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mtplx_kernel.cli", "bogus"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("mtplx-kernel: unknown command 'bogus'; allowed: fetch, ")


def test_a_reader_that_goes_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mtplx_kernel.cli", "--help"],
            stdout=writing,
            stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (cli.FAILED, b"")


def test_errors_of_the_package_only_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of ours must not look like a mistake of the user."""

    def broken(words: Any, given: Any) -> int:
        raise ZeroDivisionError

    command = cli.COMMANDS["doctor"]
    monkeypatch.setitem(cli.COMMANDS, "doctor", cli.Command(command.verb, 0, broken))
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])
