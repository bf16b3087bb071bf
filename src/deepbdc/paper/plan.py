"""The plan of an output folder: with which settings its tables are made, and how much shorter trainings are."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deepbdc._files import write_text
from deepbdc.errors import UserError
from deepbdc.paper.cells import Bench
from deepbdc.paper.cost import fitting, images_per_second
from deepbdc.paper.experiments import Experiment
from deepbdc.paper.settings import Setting

PLAN = "plan.json"


def kept_plan(setting: Setting) -> Setting | None:
    """The setting with the shortening that an earlier call has chosen for the output folder; None if there was none."""
    path = setting.output / PLAN
    if not path.is_file():
        return None
    plan = json.loads(path.read_text(encoding="utf-8"))
    same = _settings(setting)
    if {key: plan.get(key) for key in same} != same:
        raise UserError(
            f"{setting.output} holds tables that were made with other settings ({PLAN} there has them): give "
            "the same, or choose another folder with --output"
        )
    return replace(setting, shortened=plan["shortened"])


def make_plan(bench: Bench, chosen: Sequence[Experiment], minutes: float | None) -> Setting:
    """Choose the shortening that a budget needs, and keep it in the output folder.

    Args:
        bench: The setting and its data.
        chosen: What is to be made.
        minutes: The budget; None: nothing is shortened.
    """
    setting = bench.setting
    bench.check(chosen)
    shortened = 1
    if minutes is not None and any(experiment.is_trained for experiment in chosen):
        trainings = bench.trainings(chosen)
        rate = images_per_second(trainings)
        shortened = fitting(trainings, bench.splits, rate, 60 * minutes)
    content = {**_settings(setting), "shortened": shortened, "budget": minutes}
    write_text(setting.output / PLAN, json.dumps(content, indent=1) + "\n")
    return replace(setting, shortened=shortened)


def _settings(setting: Setting) -> dict[str, Any]:
    """What all tables of an output folder share."""
    return {
        "data": setting.data,
        "recipes": setting.folder_of_recipes,
        "backbone": setting.backbone,
        "values": list(setting.values),
    }
