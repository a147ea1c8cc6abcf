"""What the JSON files claim about the format of each module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from bringup.checkpoint import UnusableError
from bringup.formats import config as model_config
from bringup.formats.modules import Module
from bringup.formats.names import Names
from bringup.formats.tables import fixed_group, is_quantized, table

HF_QUANT = "hf_quant_config.json"
MODELSLIM = "quant_model_description.json"
LEGACY_GPTQ = "quantize_config.json"

GroupSize = int | tuple[int, int] | None
"""Weights that share a scale: along a row, or rows and columns of a block."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The format that a file claims for a module."""

    format: str
    group_size: GroupSize
    said_by: str
    """The file and the key in it."""
    unsure: str | None = None
    """Why the claim may not be meant; None where it is plain."""


class Layers:
    """Claims for modules by name, each for the modules below it too."""

    def __init__(self, claims: Mapping[str, Claim] | None = None) -> None:
        """Take the claims by the names that the file has."""
        self._claims = dict(claims or {})
        self._names = Names(self._claims)

    def __len__(self) -> int:
        """Return how many names the file lists."""
        return len(self._claims)

    def claim(self, name: str) -> Claim | None:
        """Return the claim for the module ``name``, or None."""
        found = self._names.find(name) if self._claims else None
        return self._claims.get(found) if found is not None else None


@dataclass(slots=True)
class Statement:
    """What one file says about all modules. What stands first below weighs more."""

    by: str
    """The file and the key of the config."""
    method: str
    """What the file calls the quantization."""
    layers: Layers = field(default_factory=Layers)
    excluded: Names = field(default_factory=lambda: Names([]))
    excluded_by: str | None = None
    """The key of the list of excluded modules."""
    targets: list[tuple[Names, Claim]] = field(default_factory=list)
    """Claims for the modules that lists of patterns find."""
    experts: Claim | None = None
    base: Statement | None = None
    """What holds for modules that this statement excludes or doesn't mention."""
    default: Claim | None = None
    """The claim for every other linear layer; None where they stay as they are."""
    takes_head: bool = False
    """Whether ``default`` is meant for the output head too."""
    within: str = ""
    """The beginning of the checkpoint's names that the file's names leave out."""
    kv_cache: dict[str, str] | None = None
    contradictions: list[str] = field(default_factory=list)
    """Where the file contradicts itself."""

    def claim(self, module: Module) -> Claim | None:
        """Return the claim for ``module``; None where it stays in the model's dtype."""
        name = module.name.removeprefix(self.within)
        named = self.layers.claim(name)
        if named is not None:
            return named
        if name in self.excluded:
            return self.base.claim(module) if self.base else None
        for names, claim in self.targets:
            if name in names:
                return claim
        if module.is_expert and self.experts:
            return self.experts
        if self.base:
            return self.base.claim(module)
        return self.default if self._takes(module) else None

    def _takes(self, module: Module) -> bool:
        """Whether ``default`` is meant for a module that no list names."""
        if module.class_ == "lm_head":
            return self.takes_head
        return module.class_ not in ("embeddings", "other") or module.is_projection

    def excludes(self, module: Module) -> bool:
        """Whether the file lists the module among those left as they are."""
        name = module.name.removeprefix(self.within)
        return self.layers.claim(name) is None and name in self.excluded


@dataclass(frozen=True, slots=True)
class Declared:
    """What all files of a checkpoint say together."""

    statements: list[Statement]
    """The one that SGLang reads first; the others are there to compare."""
    plain: Claim
    """What holds for modules that no quantization touches."""

    def claim(self, module: Module) -> Claim:
        """Return the claim for ``module``."""
        if not self.statements:
            return self.plain
        first = self.statements[0]
        claim = first.claim(module)
        if claim is not None:
            return claim
        if first.excludes(module):
            return replace(self.plain, said_by=f"{first.by}.{first.excluded_by}")
        return self.plain

    @property
    def method(self) -> str | None:
        """The name of the quantization as the first statement spells it."""
        return self.statements[0].method if self.statements else None

    def kv_cache(self) -> dict[str, str] | None:
        """Return the KV cache's format and who says it, or None."""
        return next((each.kv_cache for each in self.statements if each.kv_cache), None)


def read(files: Mapping[str, dict[str, Any]], kind: str | None) -> Declared:
    """Read the statements of the small files.

    SGLang takes the first that it finds: ``quantization_config`` (also below ``text_config``),
    ``compression_config``, then hf_quant_config.json (0.5.23 configs/model_config.py
    ``_parse_quant_hf_config``), then quant_model_description.json.

    Args:
        files: the parsed small files by name.
        kind: what the weights are stored as.

    Raises:
        UnusableError: a config is not what its name promises.
    """
    config = files.get(model_config.CONFIG, {})
    statements = list(_statements(files, config))
    if kind == "gguf":
        every = (Names(["*"]), Claim("gguf", None, "*.gguf"))
        statements.insert(0, Statement("*.gguf", "gguf", targets=[every]))
    dtype = model_config.dtype(config)
    said_by = f"{model_config.CONFIG}: " + ("dtype" if dtype else "no dtype, taken as bf16")
    return Declared(statements, Claim(dtype or "bf16", None, said_by))


def _statements(
    files: Mapping[str, dict[str, Any]], config: Mapping[str, Any]
) -> Iterator[Statement]:
    found = _quantization_config(config)
    if found is not None:
        yield _of_config(found, config)
    wrapped = files.get(HF_QUANT)
    if wrapped is not None:
        by = f"{HF_QUANT}: quantization"
        yield _modelopt(by, _object(wrapped.get("quantization"), by))
    if MODELSLIM in files:
        yield _modelslim(files[MODELSLIM])
    if found is None and LEGACY_GPTQ in files:
        yield _plain(LEGACY_GPTQ, "gptq", files[LEGACY_GPTQ], config)


@dataclass(frozen=True, slots=True)
class _Quantization:
    """The quantization part of config.json."""

    by: str
    """Where it stands."""
    given: dict[str, Any]
    nested: bool
    """Whether that is below the language model's part."""


def _quantization_config(config: Mapping[str, Any]) -> _Quantization | None:
    for path, part in _parts(config, f"{model_config.CONFIG}: "):
        for key in ("quantization_config", "compression_config"):
            if part.get(key) is not None:
                by = f"{path}{key}"
                return _Quantization(by, _object(part[key], by), part is not config)
    return None


def _parts(config: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a config and the parts of it that describe a language model, the outermost first."""
    yield path, config
    for key in table("model")["nested"]:
        if isinstance(config.get(key), dict):
            yield from _parts(config[key], f"{path}{key}.")


def _of_config(found: _Quantization, config: Mapping[str, Any]) -> Statement:
    within = table("model")["nested_names"] if found.nested else ""
    return replace(_by_method(found.by, found.given, config), within=within)


def _by_method(by: str, given: dict[str, Any], config: Mapping[str, Any]) -> Statement:
    rules = table("declared")
    word = given.get("quant_method")
    if word is not None and not isinstance(word, str):
        raise UnusableError(f"{by}.quant_method: {word!r} is no name")
    method = rules["method_aliases"].get(word, word)
    plain = _plain(by, method, given, config) if method in rules["methods"] else None
    if "quant_algo" in given or method == "modelopt":
        return replace(_modelopt(by, given), base=plain)
    if plain is not None:
        return plain
    if method == "compressed-tensors" or (method is None and "config_groups" in given):
        return _compressed_tensors(by, given)
    why = f"{by}: quant_method {word!r} is not known"
    return Statement(by, str(word), default=Claim("unknown", None, by, why))


def _plain(by: str, method: str, given: Mapping[str, Any], config: Mapping[str, Any]) -> Statement:
    """Read a config whose ``quant_method`` says all: a row of the table of methods."""
    row = table("declared")["methods"][method]
    case = next((each for each in row["cases"] if _holds(each, given)), None)
    if case is None:
        why = f"{by}: {method} without a key that tells its format"
        claim = Claim("unknown", None, by, why)
    else:
        group = fixed_group(case["format"]) or _group(_at(given, case.get("group")))
        claim = Claim(case["format"], group, f"{by}.quant_method", case.get("unsure"))
    excluded_by = next((key for key in row["excluded"] if given.get(key)), None)
    experts_only = row.get("only") == ["experts"]
    return Statement(
        by,
        method,
        excluded=_names(given, excluded_by, by),
        excluded_by=excluded_by,
        experts=claim if experts_only else _experts(by, method, row, claim, config),
        default=None if experts_only else claim,
        takes_head=bool(row.get("lm_head")),
        kv_cache=_kv_cache(given, by),
    )


def _experts(
    by: str, method: str, row: Mapping[str, Any], claim: Claim, config: Mapping[str, Any]
) -> Claim | None:
    """Return the claim for routed experts where it differs from the method's."""
    rules = table("declared")
    if "experts" in row:
        return Claim(row["experts"]["format"], row["experts"]["group_size"], f"{by}.quant_method")
    word = config.get("expert_dtype")
    if isinstance(word, str):
        format_ = rules["expert_dtypes"].get(word, "unknown")
        said_by = f"{model_config.CONFIG}: expert_dtype"
        return Claim(format_, fixed_group(format_), said_by) if format_ else claim
    for silent in rules["silent_experts"]:
        if (
            silent["architecture"] == model_config.architecture(config)
            and silent["method"] == method
            and silent["missing"] not in config
        ):
            return replace(claim, unsure=silent["why"])
    return None


def _modelopt(by: str, given: Mapping[str, Any]) -> Statement:
    """Read what ModelOpt writes, into config.json or into a file of its own."""
    rules = table("declared")
    algorithm = given.get("quant_algo")
    layers = Layers(dict(_modelopt_layers(by, given)))
    excluded_by = next((key for key in ("ignore", "exclude_modules") if given.get(key)), None)
    statement = Statement(
        by,
        f"modelopt {algorithm}",
        layers=layers,
        excluded=_names(given, excluded_by, by),
        excluded_by=excluded_by,
        takes_head=True,
        kv_cache=_kv_cache(given, by),
    )
    expert_algorithm = given.get("moe_quant_algo")
    if isinstance(expert_algorithm, str):
        statement.experts = _algorithm(by, "moe_quant_algo", expert_algorithm, given)
    if algorithm == "MIXED_PRECISION":
        if not layers and not statement.experts:
            bare = rules["bare_mixed"]
            statement.experts = _bare(by, bare["experts"], bare["unsure"])
            statement.default = _bare(by, bare["others"], bare["unsure"])
            statement.takes_head = False
    elif isinstance(algorithm, str):
        claim = _algorithm(by, "quant_algo", algorithm, given)
        if not layers and excluded_by is None:
            why = f"{by} lists no excluded modules: which layers are meant, only the tensors tell"
            claim = replace(claim, unsure=claim.unsure or why)
        statement.default = claim
    elif layers:
        statement.contradictions.append(
            f"{by}: quant_algo is null, yet quantized_layers lists {len(layers):,} modules"
        )
    return statement


def _modelopt_layers(by: str, given: Mapping[str, Any]) -> Iterator[tuple[str, Claim]]:
    listed = given.get("quantized_layers")
    for name, entry in _object(listed or {}, f"{by}.quantized_layers").items():
        details = _object(entry, f"{by}.quantized_layers.{name}")
        word = details.get("quant_algo")
        if isinstance(word, str):
            yield name, _algorithm(by, "quantized_layers", word, details)
        else:
            why = f"{by}.quantized_layers names modules without a quant_algo"
            yield name, Claim("unknown", None, f"{by}.quantized_layers", why)


def _algorithm(by: str, key: str, word: str, given: Mapping[str, Any]) -> Claim:
    row = table("declared")["algorithms"].get(word)
    if row is None:
        return Claim("unknown", None, f"{by}.{key}", f"{by}.{key}: {word!r} is not known")
    group = fixed_group(row["format"]) or _group(given.get("group_size"))
    return Claim(row["format"], group, f"{by}.{key}")


def _bare(by: str, row: Mapping[str, Any], unsure: str) -> Claim:
    return Claim(row["format"], _group(row["group_size"]), f"{by}.quant_algo", unsure)


def _compressed_tensors(by: str, given: Mapping[str, Any]) -> Statement:
    """Read groups of modules, each with a scheme for its weights and inputs."""
    groups = _object(given.get("config_groups"), f"{by}.config_groups")
    statement = Statement(
        by,
        f"compressed-tensors {given.get('format')}",
        excluded=_names(given, "ignore", by),
        excluded_by="ignore",
        takes_head=True,
        kv_cache=_kv_cache(given, by),
    )
    for name, group in groups.items():
        where = f"{by}.config_groups.{name}"
        details = _object(group, where)
        claim = _scheme(where, details)
        targets = _names(details, "targets", where)
        if not targets.entries or "Linear" in targets.entries:
            statement.default = claim
        else:
            statement.targets.append((targets, claim))
    return statement


def _scheme(where: str, group: Mapping[str, Any]) -> Claim:
    weights = _object(group.get("weights"), f"{where}.weights")
    inputs = group.get("input_activations")
    facts = {**weights, "activations": inputs.get("type") if isinstance(inputs, dict) else "none"}
    size = _group(weights.get("block_structure") or weights.get("group_size"))
    for row in table("declared")["schemes"]:
        if all(facts.get(key) == value for key, value in row.items() if key != "format"):
            return Claim(row["format"], fixed_group(row["format"]) or size, where)
    why = f"{where}: weights of {facts.get('num_bits')} bits {facts.get('type')} are not known"
    return Claim("unknown", size, where, why)


def _modelslim(description: Mapping[str, Any]) -> Statement:
    """Read a word for each tensor."""
    words = table("declared")["modelslim"]
    layers: dict[str, Claim] = {}
    for name, word in description.items():
        module, _, part = name.rpartition(".")
        if part != "weight" or not isinstance(word, str) or words.get(word, "") is None:
            continue
        format_ = words.get(word, {"format": "unknown"})["format"]
        unsure = f"{MODELSLIM}: {word} is not known" if format_ == "unknown" else None
        layers[module] = Claim(format_, None, MODELSLIM, unsure)
    return Statement(MODELSLIM, "modelslim", layers=Layers(layers))


def _kv_cache(given: Mapping[str, Any], by: str) -> dict[str, str] | None:
    rules = table("declared")["kv_cache"]
    for key in ("kv_cache_quant_algo", "kv_cache_scheme"):
        said = given.get(key)
        if isinstance(said, str):
            return {"format": rules["words"].get(said, "unknown"), "said_by": f"{by}.{key}"}
        if isinstance(said, dict):
            known = [
                row["format"]
                for row in rules["schemes"]
                if all(said.get(name) == row[name] for name in ("num_bits", "type"))
            ]
            return {"format": known[0] if known else "unknown", "said_by": f"{by}.{key}"}
    return None


def _names(given: Mapping[str, Any], key: str | None, by: str) -> Names:
    listed = given.get(key) if key else None
    if listed is not None and not isinstance(listed, list):
        raise UnusableError(f"{by}.{key}: holds a {type(listed).__name__}, not a list of modules")
    return Names(listed or (), f"{by}.{key}")


def _holds(case: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    if "has" in case and given.get(case["has"]) is None:
        return False
    wanted: Mapping[str, str] = case.get("when", {})
    return all(fnmatchcase(str(_at(given, key)), value) for key, value in wanted.items())


def _at(given: Any, path: str | None) -> Any:
    """Return what stands at a path of keys and list positions, or None."""
    for step in path.split(".") if path else ():
        if isinstance(given, dict):
            given = given.get(step)
        elif isinstance(given, list) and step.isdigit() and int(step) < len(given):
            given = given[int(step)]
        else:
            return None
    return given if path else None


def _group(value: Any) -> GroupSize:
    if isinstance(value, list) and len(value) == 2 and all(type(each) is int for each in value):
        return value[0], value[1]
    return value if type(value) is int and value > 0 else None


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnusableError(f"{where}: holds a {type(value).__name__}, not an object")
    return value


def disagreements(statements: Iterable[Statement], modules: Iterable[Module]) -> list[str]:
    """Return in words where two files claim different formats for a module."""
    every = list(statements)
    found: set[tuple[str, str, str]] = set()
    for module in modules:
        claims = [claim for each in every if (claim := each.claim(module)) and not claim.unsure]
        for one, other in pairwise(each for each in claims if is_quantized(each.format)):
            if one.format != other.format:
                found.add((module.class_, _words(one), _words(other)))
    return [f"{one} for {class_}, {other}" for class_, one, other in sorted(found)]


def _words(claim: Claim) -> str:
    return f"{claim.said_by} says {claim.format}"


def oddities(files: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Yield what a config says twice and differently without its changing any weight's format."""
    found = _quantization_config(files.get(model_config.CONFIG, {}))
    if found is None:
        return
    by, given = found.by, found.given
    groups = given.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        dynamic = _at(group, "input_activations.dynamic")
        if given.get("activation_scheme") == "dynamic" and dynamic is False:
            yield f"{by}.activation_scheme is dynamic, config_groups.{name} says static inputs"
