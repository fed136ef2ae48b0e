# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From simulation to the robot: what will this policy bear?
#
# A policy that walks in simulation meets, on the robot, a computer that is late, a floor that is slippery, a battery
# and a camera that weigh something, and sensors that are worse than the data sheet. This notebook takes one exported
# policy file and asks, before the robot is switched on:
#
# 1. **Contract and parity.** Is the file what it says it is, and does it run in time?
# 2. **One thing at a time.** How do falls and tracking change with control delay, foot friction, payload and sensor
#    noise, and at which value does the policy break?
# 3. **Everything at once.** Which combination of things that it bears one at a time brings it down, and how does that
#    fall look?
#
# Everything here is simulated, with the policy read from the ONNX file alone, as on the robot.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import Markdown, display

import robolearn
from deploy.controller import run
from deploy.describe import describe
from deploy.golden import verify
from deploy.runtime import Policy
from robolearn import gap
from robolearn.exporting import check
from robolearn.sim_robot import SimRobot
from robolearn.training import default_config, make_env
from sim.errors import UserError
from sim.render import Renderer

# %% tags=["parameters"]
POLICY = os.environ.get("ROBOLEARN_POLICY", "../demo/policy.onnx")  # made by `make demo` or `robolearn export`
WORLDS = int(os.environ.get("ROBOLEARN_WORLDS", "128"))  # episodes behind every point
SECONDS = float(os.environ.get("ROBOLEARN_SECONDS", "10"))  # length of an episode
TRIALS = int(os.environ.get("ROBOLEARN_TRIALS", "24"))  # combinations tried in the search for the worst
SEED = 0

# %%
torch.set_num_threads(1)
plt.rcParams.update(
    {"figure.dpi": 110, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}
)
BLUE, RED, GREY = "#2b6cb0", "#c53030", "#a0aec0"

policy = robolearn.load(POLICY)
contract = policy.contract
assert contract is not None, "this notebook judges an exported policy: POLICY must be an .onnx file"
config = default_config(policy.task, threads=0)
check(contract, make_env(config, num_envs=1))
display(Markdown(f"**{POLICY}** was trained on **{policy.task}** and fits that task as it stands here."))

# %% [markdown]
# ## 1. Contract and parity
#
# The contract inside the file: every term the policy reads, in order and with its unit, every joint it drives, with
# gains and limits. Check it against the robot in front of you.

# %%
print(describe(contract))

# %% [markdown]
# The golden replay is a piece of simulation stored beside the file. The runtime here must reproduce its actions.

# %%
golden = verify(POLICY)
display(
    Markdown(
        f"{golden.steps} steps replayed under onnxruntime: largest error of an action {golden.action_error:.1e}, of a "
        f"joint target {golden.target_error:.1e} rad; at most {contract.golden.action_tolerance:.0e} and "
        f"{contract.golden.target_tolerance:.0e} are allowed."
    )
)

# %% [markdown]
# Then the whole loop as on the robot: the controller with its deadlines, the file, and a simulated robot that runs in
# wall-clock time and reports what a real one can report. The command is half of the trained range forward.

# %%
half = np.array([0.5 * high if i == 0 else 0.0 for i, (_, high) in enumerate(contract.commands[0].ranges)])
report = run(Policy(POLICY), SimRobot(contract), lambda time: half, SECONDS)
period = contract.timing.control_dt * 1e3
starts = report.record.start_ns[: report.steps] * 1e-6

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 2.8))
left.hist(np.diff(starts), bins=40, color=BLUE)
left.axvline(period, color=RED, linewidth=1)
left.set(xlabel="period, ms", ylabel="steps", title=f"periods around {period:g} ms")
right.hist(report.record.inference_ns[: report.steps] * 1e-3, bins=40, color=BLUE)
right.set(xlabel="inference, µs", title="time for one action")
for axes in (left, right):
    axes.set_yscale("log")
fig.tight_layout()
plt.show()

jitter, inference = report.period_jitter_us, report.inference_us
tracking = ", ".join(f"{name} {error:.2f}" for name, error in report.command_error.items())
display(
    Markdown(
        f"The run **{report.reason}** after {report.steps} steps at {report.rate_hz:.2f} Hz, {report.overruns} periods "
        f"missed. Period jitter: p50 {jitter.p50:.0f}, p99 {jitter.p99:.0f}, max {jitter.max:.0f} µs. Inference: p50 "
        f"{inference.p50:.0f}, p99 {inference.p99:.0f}, max {inference.max:.0f} µs, so it uses "
        f"{inference.p99 / period / 10:.2f} % of a period. Mean absolute tracking error: {tracking or 'no steps'}."
    )
)

# %% [markdown]
# ## 2. One thing at a time
#
# Each point below is one episode in each of many worlds, with random commands, pushes and the noise of the training.
# The same seed gives every point of a curve the same starts and commands, so that they differ in one thing only:
#
# * **control delay**: time between the policy's action and its effect, in physics steps;
# * **foot friction**: as a factor on that of the model;
# * **payload**: mass added to the base, with the inertia of a base made heavier;
# * **sensor noise**: as a factor on the noise of the training.
#
# Above, the share of episodes that end in a fall, with 95 % Wilson intervals: with few episodes they are wide, and
# two points whose intervals overlap much are not known to differ. Below, how well the command is followed until the
# end or the fall. The grey band is what the policy was trained with, the dashed line the nominal robot.

# %%
nominal = gap.nominal(config, SECONDS)
parameters = gap.parameters(config)
outcomes = {parameter: gap.sweep(policy.act, nominal, parameter, WORLDS, SEED) for parameter in parameters}


# %%
def plot_falls(axes, parameter, found):
    """Draw the share of falls with its interval, and the value at which the policy counts as failing."""
    share = np.array([outcome.fall_share for outcome in found])
    low, high = np.array([outcome.interval for outcome in found]).T
    axes.errorbar(parameter.values, share, yerr=(share - low, high - share), color=RED, marker="o", capsize=3)
    for edge in gap.margins(parameter, found):
        if edge is not None:
            axes.axvline(edge, color=RED, linewidth=1, linestyle=":")
    axes.set(ylim=(-0.03, 1.03), title=parameter.name)


def plot_error(axes, parameter, found):
    """Draw the task's velocity errors."""
    for name, style in zip(found[0].errors, ("-", "--"), strict=False):
        errors = [outcome.errors[name] for outcome in found]
        axes.plot(parameter.values, errors, style, color=BLUE, marker="o", label=name.replace("_", " "))
    axes.set_xlabel(f"{parameter.name}, {parameter.unit}")


fig, grid = plt.subplots(2, len(parameters), figsize=(3.4 * len(parameters), 5.2), sharex="col", sharey="row")
for (top, bottom), (parameter, found) in zip(grid.T, outcomes.items(), strict=True):
    plot_falls(top, parameter, found)
    plot_error(bottom, parameter, found)
    for axes in (top, bottom):
        axes.axvspan(*parameter.trained, color=GREY, alpha=0.35, linewidth=0)
        axes.axvline(parameter.nominal, color="black", linewidth=0.8, linestyle="--")
grid[0, 0].set_ylabel("share of episodes with a fall")
grid[1, 0].set_ylabel("tracking error, m/s and rad/s")
grid[1, 0].set_ylim(bottom=0)
grid[1, 0].legend()
fig.tight_layout()
plt.show()

# %% [markdown]
# ### Where it breaks
#
# A policy counts as failing where one episode in ten ends in a fall. Between two tried values the share is taken to
# change linearly, so the margin is as fine as the steps of the sweep and as sure as the intervals above.


# %%
def row(parameter, found):
    """Return a line of the table of margins."""
    at = found[parameter.values.index(parameter.nominal)]
    worst = max(found, key=lambda outcome: outcome.fall_share)
    low, high = (f"{100 * end:.0f}" for end in worst.interval)
    text = gap.margin_text(parameter, found).partition(": ")[2]
    return (
        f"| {parameter.name} | {text} | {100 * at.fall_share:.0f} % | {100 * worst.fall_share:.0f} % "
        f"({low} to {high} %) |"
    )


table = ["| | margin, from nominal | falls at nominal | falls at the worst value |", "|---|---|---|---|"]
display(Markdown("\n".join([*table, *(row(parameter, found) for parameter, found in outcomes.items())])))

# %% [markdown]
# How to use it: measure the robot's own delay and put it beside the margin; if the margin is not a good deal larger,
# train with delay. Friction below the margin means a floor to avoid, or a wider range in training. A policy whose
# falls rise outside the grey band only is doing what it was trained to do; one that falls inside it was not trained
# long enough.

# %% [markdown]
# ## 3. Everything at once
#
# Robots do not differ in one thing at a time. Here every parameter is drawn at random from the range that the policy
# bears **alone**, and the combinations are ranked by their falls. What comes out on top is the price of looking at one
# thing at a time.

# %%
ranges = {parameter: gap.borne(parameter, found) for parameter, found in outcomes.items()}
trials = gap.search(policy.act, nominal, ranges, TRIALS, max(WORLDS // 4, 4), SEED)
names = [parameter.name for parameter in parameters]
lines = [
    "| " + " | ".join(f"{p.name}, {p.unit}" for p in parameters) + " | falls | velocity error, m/s |",
    "|---" * (len(parameters) + 2) + "|",
]
for trial in trials[:5]:
    low, high = (100 * end for end in trial.outcome.interval)
    values = " | ".join(f"{trial.values[name]:.3g}" for name in names)
    lines.append(
        f"| {values} | {100 * trial.outcome.fall_share:.0f} % ({low:.0f} to {high:.0f} %) "
        f"| {trial.outcome.errors['velocity_error']:.2f} |"
    )
display(Markdown("\n".join(lines)))

# %%
fig, panels = plt.subplots(1, len(parameters) - 1, figsize=(3.4 * (len(parameters) - 1), 3), sharey=True)
for axes, parameter in zip(panels, parameters[1:], strict=True):
    x, y = ([trial.values[p.name] for trial in trials] for p in (parameter, parameters[0]))
    share = [trial.outcome.fall_share for trial in trials]
    points = axes.scatter(x, y, c=share, cmap="RdYlBu_r", vmin=0, vmax=1, edgecolor="black", linewidth=0.5)
    axes.set_xlabel(f"{parameter.name}, {parameter.unit}")
panels[0].set_ylabel(f"{parameters[0].name}, {parameters[0].unit}")
fig.colorbar(points, ax=panels, label="share of falls")
plt.show()

# %% [markdown]
# ### The worst case, watched
#
# One world under the worst combination: the first that falls, or the last if none does.

# %%
worst = gap.with_values(nominal, parameters, trials[0].values)
trace = gap.trace(policy.act, worst, max(WORLDS // 4, 4), SEED)

fig, (above, below) = plt.subplots(2, 1, figsize=(10, 4), sharex=True)
above.plot(trace.time, np.degrees(trace.tilt), color=RED)
if contract.safety.tilt_limit_rad is not None:
    above.axhline(np.degrees(contract.safety.tilt_limit_rad), color="black", linewidth=0.8, linestyle="--")
above.set(ylabel="tilt, degrees", title="until the fall" if trace.fell else "no fall")
for i, (name, color) in enumerate((("forward", BLUE), ("to the left", RED))):
    below.plot(trace.time, trace.velocity[:, i], color=color, label=name)
below.set(xlabel="time, s", ylabel="velocity of the base, m/s")
below.legend()
fig.tight_layout()
plt.show()

# %%
# The last second, in five pictures; MuJoCo draws them where the machine has an offscreen OpenGL library.
rate = 1 / contract.timing.control_dt
last = np.linspace(max(0, len(trace.time) - rate), len(trace.time) - 1, 5).astype(int)
try:
    with Renderer(make_env(worst, num_envs=1).sim.model, 320, 240) as renderer:
        pictures = [renderer.render(trace.qpos[step]) for step in last]
except UserError as error:
    print(error)
else:
    fig, frames = plt.subplots(1, 5, figsize=(14, 2.6))
    for axes, picture, step in zip(frames, pictures, last, strict=True):
        axes.imshow(picture)
        axes.set_title(f"{trace.time[step]:.2f} s", fontsize=9)
        axes.axis("off")
    fig.tight_layout()
    plt.show()

# %% [markdown]
# ## What this does not tell
#
# The simulator itself is the same in training and here: contact, motors and the body's flexibility are its own. A
# margin is therefore an upper bound on what the robot will bear, not a promise, and the way to use it is as a
# comparison, of two policies under the same questions.

# %%
summary = "; ".join(gap.margin_text(parameter, found) for parameter, found in outcomes.items())
together = trials[0].outcome
display(
    Markdown(
        f"**In one line.** {summary}. Together, within what it bears alone: at worst {100 * together.fall_share:.0f} % "
        f"falls and a velocity error of {together.errors['velocity_error']:.2f} m/s."
    )
)
