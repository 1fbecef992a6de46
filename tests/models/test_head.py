"""Which head drafts for a model: the order of "auto", explicit paths, facts, and refusals."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from mtplx_kernel.errors import ModelUnusable
from mtplx_kernel.heads.checkpoint import load_native, save_native
from mtplx_kernel.heads.distilled import DistilledHead, HeadConfig
from mtplx_kernel.heads.distilled_file import save_distilled
from mtplx_kernel.heads.families import classes_without_head
from mtplx_kernel.models import head as head_module
from mtplx_kernel.models.catalog import ModelSource
from mtplx_kernel.models.head import (
    LoadedHead,
    load_head,
    running,
    shipped_name,
)
from mtplx_kernel.models.target import Target
from tests.models.original import HIDDEN, LAYERS, write

VOCABULARY = 260
ALLOWED = "give 'auto', 'none', a distilled head.safetensors, or a folder with a head"
IDS = [7, 3, 80, 21, 0]
NAME = "tiny"
HINT = "; load with the head 'none' to do without it"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model with a head of its own and one without."""
    folder = tmp_path_factory.mktemp("published")
    return {kind: write(kind, folder / kind) for kind in ("qwen3_next", "llama")}


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this package's own heads are, of which there are none at first."""
    monkeypatch.setattr(head_module, "SHIPPED", tmp_path / "shipped")
    return tmp_path / "shipped"


def opened(folder: Path) -> tuple[Target, dict[str, Any]]:
    model, config = load_model(folder, get_model_classes=classes_without_head)
    if "num_experts" in config:
        model.set_dtype(mx.float32)  # MLX multiplies experts in nothing else on a CPU
    return Target(model), config


def load(
    choice: str, folder: Path, *, on_gpu: bool = False, shipped: str | None = None
) -> LoadedHead | None:
    target, config = opened(folder)
    return load_head(choice, folder, NAME, config, target, on_gpu=on_gpu, shipped=shipped)


def found(choice: str, folder: Path, **options: Any) -> LoadedHead:
    loaded = load(choice, folder, **options)
    assert loaded is not None
    return loaded


def refusal(choice: str, folder: Path) -> str:
    with pytest.raises(ModelUnusable) as caught:
        load(choice, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def distil(folder: Path, path: Path, norm: float = 1.0, seed: int = 0) -> Path:
    """A random distilled head for the folder's model; `norm` scales what it is recognised by."""
    target, _ = opened(folder)
    mx.random.seed(seed)
    config = HeadConfig(HIDDEN, VOCABULARY, LAYERS, (1, "final"), 4, 2, 16, 96)
    head = DistilledHead(config, target.shared, mx.array(IDS, mx.int32))
    assert target.final_norm is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    save_distilled(path, head, target.final_norm * norm)
    return path


def copied(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder)
    return folder


def test_auto_takes_own_then_beside_then_shipped_then_none(
    sources: dict[str, Path], tmp_path: Path, shipped: Path
) -> None:
    own, bare = copied(sources["qwen3_next"], tmp_path / "own"), tmp_path / "bare"
    copied(sources["llama"], bare)
    assert load("auto", bare) is None
    given = distil(bare, shipped / NAME / "head.safetensors")
    assert load("auto", bare) is None, "a folder of a catalog model's name is another model"
    assert load("auto", bare, shipped="another") is None
    assert found("auto", bare, shipped=NAME).facts.source == str(given)
    beside = distil(bare, bare / "head.safetensors")
    assert found("auto", bare, shipped=NAME).facts.source == str(beside)
    distil(own, own / "head.safetensors")
    assert found("auto", own, shipped=NAME).facts.source == str(own)
    assert found("auto", own).facts.family == "qwen3_next"


def test_only_the_catalogs_models_have_a_shipped_head(tmp_path: Path) -> None:
    named = [ModelSource(NAME, tmp_path, origin) for origin in ("catalog", "folder", "hub")]
    assert [shipped_name(source) for source in named] == [NAME, None, None]


def test_a_shipped_head_that_does_not_fit_is_an_error(
    sources: dict[str, Path], shipped: Path
) -> None:
    distil(sources["llama"], shipped / NAME / "head.safetensors", norm=1.5)
    with pytest.raises(ModelUnusable, match=r"a head for another model.*; load with the head"):
        load("auto", sources["llama"], shipped=NAME)
    assert load("auto", sources["llama"]) is None


def test_none_is_no_head(sources: dict[str, Path]) -> None:
    assert load("none", sources["qwen3_next"]) is None


def test_a_path_of_a_file_or_of_a_folder(sources: dict[str, Path], tmp_path: Path) -> None:
    own, bare = sources["qwen3_next"], sources["llama"]
    path = distil(bare, tmp_path / "mine" / "head.safetensors")
    for choice in (path, path.parent):
        assert found(str(choice), bare).facts.source == str(path)
    assert found(str(own), own).facts.source == str(own)
    beside = distil(own, tmp_path / "another" / "mine.safetensors")
    assert found(str(beside), own).facts.family == "distilled"


def test_a_path_may_begin_with_the_users_home(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    distil(sources["llama"], tmp_path / "head.safetensors")
    assert found("~/head.safetensors", sources["llama"]).facts.family == "distilled"


def test_the_head_of_a_folder_that_holds_it_alone(sources: dict[str, Path], tmp_path: Path) -> None:
    """A bare model takes the head that another folder of the same model kept."""
    source = sources["qwen3_next"]
    target, config = opened(source)
    native = load_native(source, config, shared=target.shared, hidden=HIDDEN, vocabulary=VOCABULARY)
    assert native is not None
    (tmp_path / "kept").mkdir()
    save_native(native, tmp_path / "kept" / "mtp.safetensors")
    loaded = found(str(tmp_path / "kept"), source)
    assert loaded.facts.source == str(tmp_path / "kept")


def test_facts_of_a_checkpoints_own_head(sources: dict[str, Path]) -> None:
    loaded = found("auto", sources["qwen3_next"])
    arrays: Any = dict(tree_flatten(loaded.head.parameters()))
    assert loaded.facts.family == "qwen3_next"
    assert loaded.facts.parameters == 55_968 == sum(a.size for a in arrays.values())
    assert loaded.facts.nbytes == 4 * 55_968, "float32 on a CPU"
    assert loaded.facts.columns == VOCABULARY
    assert loaded.facts.identity.startswith("qwen3_next-")
    on_gpu = found("auto", sources["qwen3_next"], on_gpu=True)
    assert on_gpu.facts.nbytes == 2 * 55_968, "bfloat16, as stored"


def test_facts_of_a_distilled_head(sources: dict[str, Path], tmp_path: Path) -> None:
    path = distil(sources["llama"], tmp_path / "head.safetensors")
    loaded = found(str(path), sources["llama"])
    vectors = 2 * 64 + 5 * 64
    matrices = 2 * 64 * 64 + 2 * 64 * 64 + (64 + 32 + 32 + 64) * 64 + 3 * 96 * 64
    assert loaded.facts.parameters == vectors + matrices
    # Besides, the ids and their rows of the output head, which this model keeps in bfloat16.
    assert loaded.facts.nbytes == 4 * (vectors + matrices) + 5 * (4 + 2 * 64)
    assert loaded.facts.columns == len(IDS)
    assert loaded.head.vocabulary is not None
    assert loaded.head.vocabulary.tolist() == IDS
    (tmp_path / "elsewhere").mkdir()
    moved = Path(shutil.copy(path, tmp_path / "elsewhere" / "head.safetensors"))
    assert found(str(moved), sources["llama"]).facts.identity == loaded.facts.identity


def test_another_head_of_the_same_sizes_is_another(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    one, other = (
        distil(sources["llama"], tmp_path / str(seed) / "head.safetensors", seed=seed)
        for seed in (1, 2)
    )
    assert one.stat().st_size == other.stat().st_size
    identities = [found(str(path), sources["llama"]).facts.identity for path in (one, other)]
    assert identities[0] != identities[1]
    assert all(identity.startswith("distilled-") for identity in identities)


@pytest.mark.parametrize("whole", [True, False])
def test_an_own_head_that_was_trained_on_is_another(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Whether its files are small enough to be read whole or not."""
    if not whole:
        monkeypatch.setattr("mtplx_kernel.models.identity.WHOLE", 0)
    folder = copied(sources["qwen3_next"], tmp_path / "model")
    (path,) = (p for p in folder.glob("*.safetensors") if "mtp.fc.weight" in mx.load(str(p)))
    tensors: Any = mx.load(str(path))
    mx.eval(tensors)
    identities, sizes = [], []
    for factor in (1, 1, 2):
        changed = {**tensors, "mtp.fc.weight": tensors["mtp.fc.weight"] * factor}
        mx.save_safetensors(str(path), changed, {"format": "pt"})
        identities.append(found("auto", folder).facts.identity)
        sizes.append(path.stat().st_size)
    assert identities[0] == identities[1] != identities[2]
    assert len(set(sizes)) == 1


def test_a_cpu_drafts_from_fewer_ids(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = distil(sources["llama"], tmp_path / "head.safetensors")
    assert head_module.CPU_COLUMNS == 8192
    monkeypatch.setattr(head_module, "CPU_COLUMNS", 3)
    on_cpu = found(str(path), sources["llama"])
    on_gpu = found(str(path), sources["llama"], on_gpu=True)
    assert (on_cpu.facts.columns, on_gpu.facts.columns) == (3, 5)
    assert on_cpu.head.vocabulary is not None
    assert on_cpu.head.vocabulary.tolist() == IDS[:3]
    assert on_cpu.facts.identity != on_gpu.facts.identity
    dtypes = [{a.dtype for _, a in tree_flatten(h.head.parameters())} for h in (on_cpu, on_gpu)]
    assert dtypes == [{mx.float32}, {mx.bfloat16}]


def test_the_targets_states_are_kept_for_the_head(sources: dict[str, Path], tmp_path: Path) -> None:
    path = distil(sources["llama"], tmp_path / "head.safetensors")
    target, config = opened(sources["llama"])
    assert load_head(str(path), sources["llama"], NAME, config, target, on_gpu=False)
    final = target.forward(mx.array([[1, 2, 3]]), None)
    assert target.features(final).shape == (1, 3, 2 * HIDDEN)


def test_what_is_not_there(sources: dict[str, Path], tmp_path: Path) -> None:
    bare = sources["llama"]
    assert refusal("nowhere", bare) == f"there is no head at 'nowhere': {ALLOWED}"
    assert refusal(str(tmp_path), bare) == f"{tmp_path} holds no head for tiny: {ALLOWED}"


def test_a_file_that_is_no_distilled_head(sources: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.safetensors"
    text.write_text("no header, no tensors")
    assert refusal(str(text), sources["llama"]).startswith(f"{text} is damaged: ")
    own = next(sources["qwen3_next"].glob("model*.safetensors"))
    assert refusal(str(own), sources["qwen3_next"]) == (
        f"{own.name} is not a distilled head; name a head.safetensors of one, or the folder of a"
        " checkpoint with its own"
    )


def test_a_distilled_head_of_another_model(sources: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(sources["llama"], tmp_path / "model")
    path = distil(folder, folder / "head.safetensors", norm=1.5)
    message = (
        "head.safetensors is a head for another model: the final norms differ; distil one for this"
    )
    assert refusal(str(path), folder) == message
    assert refusal("auto", folder) == message + HINT


def test_an_own_head_that_is_damaged(sources: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(sources["qwen3_next"], tmp_path / "model")
    (folder / "mtp.safetensors").write_bytes(b"12345")
    for choice, hint in (("auto", HINT), (str(folder), "")):
        message = refusal(choice, folder)
        assert message.startswith(f"{folder}/mtp.safetensors is damaged: ")
        assert message.endswith(f"; fetch it again{hint}")


def test_an_own_head_whose_file_was_not_fetched(sources: dict[str, Path], tmp_path: Path) -> None:
    """It is not passed over in silence, nor for the distilled head beside it."""
    folder = copied(sources["qwen3_next"], tmp_path / "model")
    kept: dict[str, mx.array] = {}
    for path in folder.glob("model*.safetensors"):
        kept |= {n: a for n, a in dict(mx.load(str(path))).items() if not n.startswith("mtp.")}
    mx.eval(kept)
    for path in folder.glob("model*.safetensors"):
        path.unlink()
    mx.save_safetensors(str(folder / "model.safetensors"), kept, {"format": "pt"})
    distil(folder, folder / "head.safetensors")
    message = refusal("auto", folder)
    assert message == (
        f"{folder} has a head whose tensors are in model-00001-of-00002.safetensors, which is"
        f" missing; fetch it too{HINT}"
    )
    assert load("none", folder) is None
    assert found(str(folder / "head.safetensors"), folder).facts.family == "distilled"


class Opaque(nn.Module):
    """A model whose inner model goes by no known name."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.hidden_away = model

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return self.hidden_away(tokens, cache=cache)


def test_a_model_whose_states_cannot_be_read(sources: dict[str, Path], tmp_path: Path) -> None:
    path = distil(sources["llama"], tmp_path / "head.safetensors")
    model, config = load_model(sources["llama"])
    target = Target(Opaque(model))
    assert not target.splits
    assert load_head("auto", path.parent, NAME, config, target, on_gpu=False) is None
    with pytest.raises(ModelUnusable) as caught:
        load_head(str(path), sources["llama"], NAME, config, target, on_gpu=False)
    assert str(caught.value) == (
        f"the head in {path} cannot be run here: the model's hidden states cannot be told from its"
        f" logits, as a head needs{HINT}"
    )


def test_a_model_whose_final_norm_is_unknown(
    sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtplx_kernel.models.target.NORM_NAMES", ("no_such_norm",))
    folder = sources["qwen3_next"]
    message = f"the head in {folder} cannot be run here: the model's final norm was not found{HINT}"
    assert refusal("auto", folder) == refusal(str(folder), folder) == message


def test_a_model_that_keeps_its_layers_elsewhere(sources: dict[str, Path], tmp_path: Path) -> None:
    path = distil(sources["llama"], tmp_path / "head.safetensors")
    module = importlib.import_module("mlx_lm.models.gpt2")
    config = {
        "model_type": "gpt2",
        "n_ctx": 64,
        "n_embd": HIDDEN,
        "n_head": 4,
        "n_layer": LAYERS,
        "n_positions": 64,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": VOCABULARY,
    }
    target = Target(module.Model(module.ModelArgs.from_dict(config)))
    assert target.splits
    assert load_head("auto", tmp_path / "bare", NAME, config, target, on_gpu=False) is None
    with pytest.raises(ModelUnusable) as caught:
        load_head(str(path), tmp_path / "bare", NAME, config, target, on_gpu=False)
    assert str(caught.value) == (
        f"the head in {path} cannot be run here: the model's layers were not found{HINT}"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError("too\nmuch"), "MemoryError: too much"),
        (KeyError(), "KeyError"),
        (AssertionError("x" * 300), f"AssertionError: {'x' * 200}"),
    ],
)
def test_whatever_fails_with_a_head_is_told_as_that_heads(error: Exception, reason: str) -> None:
    with pytest.raises(ModelUnusable) as caught, running("a/head"):
        raise error
    assert str(caught.value) == f"the head in a/head cannot be run here: {reason}{HINT}"
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("choice", ["auto", "path"])
def test_a_head_that_fails_while_it_is_loaded(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise OverflowError("no such number")

    folder = copied(sources["llama"], tmp_path / "model")
    path = distil(folder, folder / "head.safetensors")
    monkeypatch.setattr(head_module, "load_distilled", failing)
    assert refusal(str(path) if choice == "path" else choice, folder) == (
        f"the head in {path} cannot be run here: OverflowError: no such number{HINT}"
    )
