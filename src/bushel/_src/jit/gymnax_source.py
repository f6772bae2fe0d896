"""`GymnaxSource`: a policy plays an environment, and the transitions are the elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.jit.compiled_loader import LoaderState
from bushel._src.jit.source import Pytree, Tree, child, pytree_dataclass
from bushel._src.jit.uint32 import to_key


@public("bushel.jit")
class GymnaxSourceState(NamedTuple):
    """The state of an environment and of its policy."""

    env_state: Any
    obs: Any
    key: jax.Array
    step: jax.Array
    epoch: jax.Array
    policy_state: Any
    new_episode: jax.Array


@public("bushel.jit")
@pytree_dataclass
class GymnaxSource(Pytree):
    """Transitions of an environment that a policy plays: state, action, reward, next_state, done, info.

    `next_state` of an episode's last step is the last observation of that episode, not the first of the next one.
    Environments of Gymnax 1 say why an episode ended: their transitions also have `terminated` and `truncated`, and
    `done` is true if one of them is. `info` is that of the environment, without `final_observation`, which is
    `next_state`.

    Args:
      env: an environment with Gymnax' `reset(key, params)` and `step(key, state, action, params)`, which returns
        (obs, state, reward, terminated, truncated, info), or (obs, state, reward, done, info) as before Gymnax 1. With
        Gymnax 0.0 pass the environment itself: a wrapper around it hides the last observation of an episode.
      env_params: the parameters of the environment.
      policy_fn: `policy_fn(obs, policy_params, key) -> action`.
      policy_params: the parameters of `policy_fn`.
      steps_per_epoch: the number of steps in an epoch. The environment is reset when an epoch begins.
      policy_step_fn: instead of `policy_fn`, for a policy with a state: `policy_step_fn(obs, policy_state, new_episode,
        key) -> (action, policy_state)`.
      policy_state_template: an example of the state of `policy_step_fn`. Set the real state with
        `set_loader_policy_state`.
    """

    env: Any
    env_params: Any = child(repr=False)
    policy_fn: Callable[..., Any] | None = None
    policy_params: Any = child(default=None, repr=False)
    steps_per_epoch: int = 1024
    policy_step_fn: Callable[..., tuple[Any, Any]] | None = dataclasses.field(default=None, kw_only=True)
    policy_state_template: Any = child(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        checks.positive(self.steps_per_epoch, "steps_per_epoch")
        if (self.policy_fn is None) == (self.policy_step_fn is None):
            raise ValueError("GymnaxSource takes either policy_fn or policy_step_fn.")
        if self.policy_step_fn is not None and self.policy_state_template is None:
            raise ValueError("policy_step_fn needs policy_state_template: an example of the state that it takes.")

    def init_state(self, key: Any = None) -> GymnaxSourceState:
        """Begin an episode. With `policy_step_fn`, call `set_loader_policy_state` before the first step."""
        key, reset_key = jax.random.split(to_key(key))
        obs, env_state = self.env.reset(reset_key, self.env_params)
        policy_state = None if self.policy_fn is None else self.policy_params
        return GymnaxSourceState(env_state, obs, key, jnp.int32(0), jnp.int32(0), policy_state, jnp.bool_(True))

    def next(self, state: GymnaxSourceState) -> tuple[Tree, jax.Array, GymnaxSourceState]:
        """Take one step and return the transition. The environment is reset after an episode and after an epoch."""
        key, policy_key, step_key, reset_key = jax.random.split(state.key, 4)
        action, policy_state = self._choose_action(state, policy_key)
        next_obs, env_state, outcome = _take_step(self.env, step_key, state.env_state, action, self.env_params)
        transition = {"state": state.obs, "action": action, **outcome}
        last = state.step + 1 >= self.steps_per_epoch
        over = jnp.asarray(outcome["done"], bool).all() | last
        fresh = self.env.reset(reset_key, self.env_params)
        obs, env_state = jax.tree.map(lambda new, old: jnp.where(over, new, old), fresh, (next_obs, env_state))
        next_state = GymnaxSourceState(
            env_state, obs, key, jnp.where(last, 0, state.step + 1), state.epoch + last, policy_state, over
        )
        return jax.tree.map(jnp.asarray, transition), jnp.bool_(True), next_state

    def _choose_action(self, state: GymnaxSourceState, key: jax.Array) -> tuple[Any, Any]:
        """Return the policy's action and the policy's next state."""
        if self.policy_fn is not None:
            return self.policy_fn(state.obs, state.policy_state, key), state.policy_state
        assert self.policy_step_fn is not None
        if state.policy_state is None:
            raise ValueError(
                "The state of the policy is not set. Call set_loader_policy_state(state, policy_state) "
                "after init_state, and after each update of the policy."
            )
        return self.policy_step_fn(state.obs, state.policy_state, state.new_episode, key)

    def element_spec(self) -> Tree:
        """Return the shapes and dtypes of a transition."""

        return self._get_specs()[0]

    def _get_specs(self) -> tuple[Tree, Any]:
        """Return the shapes and dtypes of a transition and of its mask, by the template of the policy's state."""

        def take_first() -> tuple[Tree, jax.Array]:
            state = self.init_state(jax.random.key(0))
            if self.policy_step_fn is not None:
                state = state._replace(policy_state=self.policy_state_template)
            return self.next(state)[:2]

        return jax.eval_shape(take_first)


def _take_step(env: Any, key: jax.Array, env_state: Any, action: Any, params: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Take one step of an environment: return its observation, its state, and the outcome for the transition.

    `step` of a Gymnax environment resets the environment itself, so the observation that it returns with `done` is the
    first of the next episode. A transition needs the last observation of the episode that ended. Gymnax 1 puts it into
    `info`. Gymnax 0.0 returns it from `step_env` only, which `step` calls with the first half of its key.
    """
    step, step_key = env.step, key
    # Look at the class: a wrapper passes on the `step_env` of the environment inside, which bypasses the wrapper.
    if hasattr(type(env), "step_env") and len(jax.eval_shape(lambda: env.step(key, env_state, action, params))) == 5:
        step, step_key = env.step_env, jax.random.split(key)[0]
    obs, env_state, reward, *ends, info = step(step_key, env_state, action, params)
    if len(ends) == 1:
        return obs, env_state, {"reward": reward, "next_state": obs, "done": ends[0], "info": info}
    terminated, truncated = ends
    final = obs
    if isinstance(info, dict) and "final_observation" in info:
        info = dict(info)
        final = info.pop("final_observation")
    done = jnp.logical_or(terminated, truncated)
    outcome = {"reward": reward, "next_state": final, "done": done, "terminated": terminated, "truncated": truncated}
    return obs, env_state, {**outcome, "info": info}


@public("bushel.jit.cereal")
def set_loader_policy_state(state: LoaderState, policy_state: Any, *, new_episode: Any = None) -> LoaderState:
    """Return the state of a loader with another policy state, wherever in the pipeline the environment is."""
    return LoaderState(set_source_policy_state(state.inner_state, policy_state, new_episode=new_episode))


@public("bushel.jit.cereal")
def set_source_policy_state(state: Any, policy_state: Any, *, new_episode: Any = None) -> Any:
    """Return the state of a source with another policy state.

    Args:
      state: the state of a `GymnaxSource`, or of a source that contains one.
      policy_state: the new state of the policy.
      new_episode: if given, the `new_episode` that the policy gets in the next step.
    """

    def is_environment(part: Any) -> bool:
        return isinstance(part, GymnaxSourceState)

    def replace(part: Any) -> Any:
        if not is_environment(part):
            return part
        flag = part.new_episode if new_episode is None else jnp.asarray(new_episode, bool)
        return part._replace(policy_state=policy_state, new_episode=flag)

    if not any(is_environment(part) for part in jax.tree.leaves(state, is_leaf=is_environment)):
        raise TypeError("There is no GymnaxSource in this pipeline, so its state has no policy.")
    return jax.tree.map(replace, state, is_leaf=is_environment)
