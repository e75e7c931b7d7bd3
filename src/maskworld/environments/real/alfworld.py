"""ALFWorld's text engine in this process, on PDDL problems given as text. Needs `pip install -e .[envs]`.

The stock engine translates every problem four times and parses the same grammar templates again for every admissible
command of every step. `AlfworldEngine(cached=True)` remembers those results; texts, commands and facts are the same
(a test walks both side by side), at some thirty times the speed. Not for use from several threads at once: while an
engine call runs, the cached functions stand in for the engine's own, which are modules' attributes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.metadata
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

from maskworld.environments.protocol import Turn
from maskworld.environments.room_state import DYNAMIC_PREDICATES, MIDDLE, Layout, kind_of
from maskworld.errors import DataError, UserError

_PACKAGES = ("alfworld", "textworld", "fast_downward_textworld")


def engine_versions() -> dict[str, str]:
    """Installed versions of the packages whose code decides the texts."""
    _require()
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


class AlfworldEngine:
    """One engine, many problems: `start(problem)` begins an episode, `step(command)` plays it.

    Raises UserError when the extra is not installed, DataError for a problem that the engine cannot play.
    """

    def __init__(self, cached: bool = True) -> None:
        _require()
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
        from textworld import EnvInfos
        from textworld.envs.pddl.pddl import PddlEnv

        with open(ALFRED_PDDL_PATH, encoding="utf-8") as domain, open(ALFRED_TWL2_PATH, encoding="utf-8") as grammar:
            self._game = {"pddl_domain": domain.read(), "grammar": grammar.read()}
        self._caches = _Caches() if cached else None
        self._pddl = (_cached_environment_class() if cached else PddlEnv)(EnvInfos(admissible_commands=True))
        self._environment = AlfredDemangler(self._pddl)
        self._layout: Layout | None = None
        self._names: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._score = 0

    @property
    def layout(self) -> Layout:
        """What stands in the room of the running episode."""
        if self._layout is None:
            raise RuntimeError("start(problem) comes first")
        return self._layout

    def start(self, problem: str) -> Turn:
        """Begins an episode; the turn's text is what the agent sees first, without banner and task."""
        with self._quiet():
            try:
                self._environment.load(self._game | {"pddl_problem": problem})
                state = self._environment.reset()
            except (Exception, SystemExit) as refusal:  # the translator exits or raises whatever its parser met
                kind = type(refusal).__name__
                raise DataError(f"the engine cannot play the PDDL problem ({kind}: {refusal})") from refusal
        # Names end in a blank where the engine found no number in the identifier.
        self._names = {key: info.name.strip() for key, info in self._pddl._entity_infos.items()}
        raw = list(state["_facts"])
        self._places = {
            f.arguments[1].name: self._names[f.arguments[0].name] for f in raw if f.name == "receptacleatlocation"
        }
        self._layout = self._read_layout(raw)
        self._score = 0
        text = state["feedback"].split("\n\n")[1]
        return self._turn(state, text, 0.0, False)

    def step(self, command: str) -> Turn:
        """Plays one command; one that is not admissible is answered "Nothing happens."."""
        with self._quiet():
            state, score, done = self._environment.step(command)
        reward, self._score = float(score - self._score), score
        return self._turn(state, state["feedback"], reward, done)

    def close(self) -> None:
        # The planner's library stays loaded: unloading it crashes the process where no problem was read yet.
        """Give back what the engine holds; nothing may be called afterwards."""
        self._environment.close()

    def _turn(self, state: Any, text: str, reward: float, done: bool) -> Turn:
        # `help` lists the command patterns in 106 words; it is an instruction, not a transition.
        admissible = tuple(c for c in state["admissible_commands"] if c != "help")
        facts = frozenset(self._fact(f) for f in state["_facts"] if f.name in DYNAMIC_PREDICATES)
        return Turn(text.strip(), admissible, facts, reward, bool(done), bool(state["won"]))

    def _fact(self, fact: Any) -> str:
        if fact.name == "atlocation":
            return f"atlocation({self._places.get(fact.arguments[1].name, MIDDLE)})"
        names = [self._names[v.name] for v in fact.arguments if v.type != "agent"]
        return f"{fact.name}({', '.join(names)})"

    def _read_layout(self, facts: list[Any]) -> Layout:
        def named(predicate: str) -> list[str]:
            return [self._names[f.arguments[0].name] for f in sorted(facts) if f.name == predicate]

        kinds = {
            f.arguments[1].name: kind_of(self._names[f.arguments[0].name])
            for f in facts
            if f.name in ("receptacletype", "objecttype")
        }
        pairs = (tuple(kinds.get(v.name, "") for v in f.arguments) for f in facts if f.name == "cancontain")
        return Layout(
            receptacles=tuple(named("receptacleatlocation")),
            objects=tuple(named("objecttype")),
            openable=frozenset(named("openable")),
            fits=frozenset((r, o) for r, o in pairs if r and o),
        )

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """The translator overwrites sys.argv and, like the parser, prints progress to stdout."""
        arguments = sys.argv
        with contextlib.redirect_stdout(io.StringIO()), self._caches or contextlib.nullcontext():
            try:
                yield
            finally:
                sys.argv = arguments


def _require() -> None:
    try:
        import alfworld  # noqa: F401
        import fast_downward  # noqa: F401
        import textworld  # noqa: F401
    except ImportError as missing:
        raise UserError(
            f"ALFWorld's engine is not installed ({missing}); install it with: pip install -e .[envs]"
        ) from missing


class _Caches:
    """While entered, the engine's slow pure functions are replaced by remembering ones."""

    def __init__(self) -> None:
        import fast_downward
        from textworld.envs.pddl import logic, textgen
        from textworld.logic import Rule

        translate = functools.lru_cache(maxsize=4)(fast_downward.pddl2sas)
        parse_symbols = functools.lru_cache(maxsize=None)(textgen._parse_and_convert)

        def translate_once(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
            # The "optimized" form only serves the planner, which is never asked here.
            return translate(domain, problem)

        def parse_symbols_once(text: str, rule_name: str = "symbols", **_: Any) -> Any:
            # Derivations set each symbol's context, hence a copy per use; nothing inside a symbol is shared state.
            return _copy_symbols(parse_symbols(text, rule_name=rule_name))

        def copy_symbol(symbol: Any, context: dict) -> Any:
            new = copy.copy(symbol)
            new.context = shallow_context(context)
            return new

        def shallow_context(context: dict) -> dict:
            # The engine copies deeply what it then only reads.
            return context | {"variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

        self._replacements: list[tuple[Any, str, Any]] = [
            (fast_downward, "pddl2sas", translate_once),
            (logic, "_parse_and_convert", functools.lru_cache(maxsize=4)(logic._parse_and_convert)),
            (textgen, "_parse_and_convert", parse_symbols_once),
            (textgen, "copy_context", shallow_context),
            (textgen, "deepcopy", _copy_symbols),
            (textgen.Symbol, "copy", copy_symbol),
            (
                Rule,
                "parse_conjunctive_query",
                staticmethod(functools.lru_cache(maxsize=None)(Rule.parse_conjunctive_query)),
            ),
        ]
        self._originals: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        self._originals = [(owner, name, vars(owner)[name]) for owner, name, _ in self._replacements]
        for owner, name, value in self._replacements:
            setattr(owner, name, value)

    def __exit__(self, *_: object) -> None:
        for owner, name, value in self._originals:
            setattr(owner, name, value)


def _copy_symbols(symbols: list[Any]) -> list[Any]:
    copies = [copy.copy(symbol) for symbol in symbols]
    for symbol in copies:
        inner = getattr(symbol, "symbol", None)
        if hasattr(inner, "context"):
            symbol.symbol = _copy_symbols([inner])[0]
        inner = getattr(symbol, "expression", None)
        if hasattr(inner, "context"):
            symbol.expression = _copy_symbols([inner])[0]
    return copies


def _cached_environment_class() -> Callable[[Any], Any]:
    """PddlEnv whose `_gather_infos` words each operator once per game (the words depend on static facts only)."""
    from textworld.envs.pddl.pddl import PddlEnv

    class CachedPddlEnv(PddlEnv):
        def load(self, data: Any) -> None:
            self._commands: dict[tuple[str, ...], str] = {}
            super().load(data)

        def _gather_infos(self) -> None:
            state = self._pddl_state
            actions = list(state.all_applicable_actions())
            self.state["won"], self.state["lost"] = state.check_goal(), False
            self.state["_facts"] = list(state.facts)
            self.state["_valid_actions"] = actions
            self.state["_valid_commands"] = [self._command(action) for action in actions]
            self.state["admissible_commands"] = sorted(set(self.state["_valid_commands"]))

        def _command(self, action: Any) -> str:
            key = (action.name, *(f"{ph.name}={var.name}" for ph, var in action.mapping.items()))
            if key not in self._commands:
                names = {k: info.name for k, info in self._entity_infos.items()}
                context = {
                    "state": self._pddl_state,
                    "facts": list(self._pddl_state.facts),
                    "variables": {ph.name: self._entity_infos[var.name] for ph, var in action.mapping.items()},
                    "mapping": action.mapping,
                    "entity_infos": self._entity_infos,
                }
                action.command_template = self._logic.grammar.derive(action.command_template, context)
                self._commands[key] = action.format_command(names)
            return self._commands[key]

    return CachedPddlEnv
