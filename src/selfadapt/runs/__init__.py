"""Recipes: whole jobs, from data to the finished run folder."""
