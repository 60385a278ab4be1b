"""The commands that are also there without a checkout of the project, one module each; scripts/ has a file for each of them.

accelerate-ensemble fit 'source=[people.csv]' target=income out=runs/people
accelerate-ensemble predict ensemble=runs/people/ensemble 'source=[new.csv]' out=runs/new
python -m ensemble.commands.fit …                                      # the same, without an installed command
"""
