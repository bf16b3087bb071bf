"""Recipes: everything about an experiment in one small YAML file, checked before anything is trained."""

from deepbdc.recipes.recipe import (
    Evaluation,
    Recipe,
    Stage,
    Validation,
    build_method,
    list_recipes,
    load_recipe,
    recipe_from_dict,
)

__all__ = [
    "Evaluation",
    "Recipe",
    "Stage",
    "Validation",
    "build_method",
    "list_recipes",
    "load_recipe",
    "recipe_from_dict",
]
