"""Environments as sources: a policy plays, its transitions are the elements. Environments are those of Gymnax."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bushel.base import checks
from bushel.jit.loader import LoaderState
from bushel.jit.nodes import child, node
from bushel.jit.protocol import Tree, specs_of
from bushel.jit.words import as_key


class GymnaxSourceState(NamedTuple):
    """Where an environment and its policy stand."""

    env_state: Any
    obs: Any
    key: jax.Array
    step: jax.Array
    epoch: jax.Array
    policy_state: Any
    new_episode: jax.Array


@node
class Rollout:
    """The source that `GymnaxSource` makes."""

    env: Any
    env_params: Any = child()
    policy_step_fn: Callable[..., tuple[Any, Any]] | None = None
    policy_state: Any = child(default=None)
    steps_per_epoch: int = 1024
    must_set: bool = False

    def init_state(self, key: Any = None) -> GymnaxSourceState:
        """A new episode. Policies with a state of their own need `set_loader_policy_state` before the first step."""
        key, reset_key = jax.random.split(as_key(key))
        obs, env_state = self.env.reset(reset_key, self.env_params)
        policy_state = None if self.must_set else self.policy_state
        return GymnaxSourceState(env_state, obs, key, jnp.int32(0), jnp.int32(0), policy_state, jnp.bool_(True))

    def next(self, state: GymnaxSourceState) -> tuple[Tree, jax.Array, GymnaxSourceState]:
        """One step of the environment: a transition. An episode that is done begins again, and so does an epoch."""
        if state.policy_state is None and self.must_set:
            raise ValueError(
                "The state of the policy is not set: call set_loader_policy_state(state, policy_state) "
                "after init_state, and after each update of the policy."
            )
        key, policy_key, step_key, reset_key = jax.random.split(state.key, 4)
        assert self.policy_step_fn is not None
        action, policy_state = self.policy_step_fn(state.obs, state.policy_state, state.new_episode, policy_key)
        next_obs, env_state, outcome = _play(self.env, step_key, state.env_state, action, self.env_params)
        transition = {"state": state.obs, "action": action, **outcome}
        last = state.step + 1 >= self.steps_per_epoch
        over = jnp.asarray(outcome["done"], bool).all() | last
        fresh = self.env.reset(reset_key, self.env_params)
        obs, env_state = jax.tree.map(lambda new, old: jnp.where(over, new, old), fresh, (next_obs, env_state))
        after = GymnaxSourceState(
            env_state, obs, key, jnp.where(last, 0, state.step + 1), state.epoch + last, policy_state, over
        )
        return jax.tree.map(jnp.asarray, transition), jnp.bool_(True), after

    def element_spec(self) -> Tree:
        """Shapes and dtypes of a transition."""
        shown = dataclasses.replace(self, must_set=False)
        return specs_of(shown)[0]


def _play(env: Any, key: jax.Array, env_state: Any, action: Any, params: Any) -> tuple[Any, Any, dict[str, Any]]:
    """One step of an environment: the observation and the state to go on with, and what a transition tells of it.

    `step` of a Gymnax environment begins the next episode by itself, so the observation that it returns with `done` is
    the first one of that episode. A transition needs the last one of the episode that ended. Gymnax 1 gives it in
    `info`. Gymnax 0.0 has it in `step_env` alone, which `step` calls with the first half of its key.
    """
    outputs = len(jax.eval_shape(lambda: env.step(key, env_state, action, params))) if _has_step_env(env) else None
    if outputs == 5:
        obs, env_state, reward, done, info = env.step_env(jax.random.split(key)[0], env_state, action, params)
        return obs, env_state, {"reward": reward, "next_state": obs, "done": done, "info": info}
    obs, env_state, reward, *ends, info = env.step(key, env_state, action, params)
    if len(ends) == 1:
        return obs, env_state, {"reward": reward, "next_state": obs, "done": ends[0], "info": info}
    terminated, truncated = ends
    final = obs
    if isinstance(info, dict) and "final_observation" in info:
        info = dict(info)
        final = info.pop("final_observation")
    done = jnp.logical_or(terminated, truncated)
    seen = {"reward": reward, "next_state": final, "done": done, "terminated": terminated, "truncated": truncated}
    return obs, env_state, {**seen, "info": info}


def _has_step_env(env: Any) -> bool:
    """Whether `step_env` is the environment's own. A wrapper passes on the one of the environment that it wraps."""
    return hasattr(type(env), "step_env")


def GymnaxSource(
    env: Any,
    env_params: Any,
    policy_fn: Callable[..., Any] | None = None,
    policy_params: Any = None,
    steps_per_epoch: int = 1024,
    *,
    policy_step_fn: Callable[..., tuple[Any, Any]] | None = None,
    policy_state_template: Any = None,
) -> Rollout:
    """Transitions of an environment that a policy plays: state, action, reward, next_state, done, info.

    `next_state` of the last step of an episode is the last observation of that episode, not the first of the next one.
    Environments of Gymnax 1 tell why an episode ended: transitions then have `terminated` and `truncated` too, and
    `done` is either of them. `info` is the environment's, without `final_observation`, which is `next_state`.

    Args:
      env: an environment with Gymnax' `reset(key, params)` and `step(key, state, action, params)`, which returns
        (obs, state, reward, terminated, truncated, info), or (obs, state, reward, done, info) as before Gymnax 1. With
        Gymnax 0.0 pass the environment itself: a wrapper around it hides the last observation of an episode.
      policy_fn: `policy_fn(obs, policy_params, key) -> action`.
      policy_step_fn: instead, for a policy with a state: `policy_step_fn(obs, policy_state, new_episode, key) ->
        (action, policy_state)`. `policy_state_template` is an example of its state; the real one is set with
        `set_loader_policy_state`.
    """
    checks.positive(steps_per_epoch, "steps_per_epoch")
    if (policy_fn is None) == (policy_step_fn is None):
        raise ValueError("GymnaxSource takes policy_fn or policy_step_fn, one of the two.")
    if policy_fn is not None:

        def step(obs: Any, params: Any, new_episode: Any, key: Any) -> tuple[Any, Any]:
            return policy_fn(obs, params, key), params

        return Rollout(env, env_params, step, policy_params, steps_per_epoch)
    if policy_state_template is None:
        raise ValueError("policy_step_fn needs policy_state_template: an example of the state that it takes.")
    return Rollout(env, env_params, policy_step_fn, policy_state_template, steps_per_epoch, must_set=True)


def set_loader_policy_state(state: LoaderState, policy_state: Any, *, new_episode: Any = None) -> LoaderState:
    """The state of a loader with another state of the policy, wherever in the pipeline the environment is."""
    return LoaderState(set_source_policy_state(state.inner_state, policy_state, new_episode=new_episode))


def set_source_policy_state(state: Any, policy_state: Any, *, new_episode: Any = None) -> Any:
    """The state of a source with another state of the policy."""

    def is_rollout(part: Any) -> bool:
        return isinstance(part, GymnaxSourceState)

    def changed(part: Any) -> Any:
        if not is_rollout(part):
            return part
        flag = part.new_episode if new_episode is None else jnp.asarray(new_episode, bool)
        return part._replace(policy_state=policy_state, new_episode=flag)

    if not any(is_rollout(part) for part in jax.tree.leaves(state, is_leaf=is_rollout)):
        raise TypeError("There is no GymnaxSource in this pipeline: its state has no policy.")
    return jax.tree.map(changed, state, is_leaf=is_rollout)
