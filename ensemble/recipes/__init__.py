"""The recipes of this project, one folder each; README.md is a guide to writing another."""
