"""The code of scripts/fit.py, train.py, predict.py and ensemble_predictor.py, in modules of the same names.

main.py is the console command `accelerate-ensemble`, whose `predict` is that of ensemble_predictor.py. train_on_cpu.py is
train.py on CPU ranks without a launcher, imports.py speeds up the imports of libraries, and hooks.py checks the functions
of a recipe.

accelerate-ensemble fit 'source=[people.csv]' target=income out=runs/people
accelerate-ensemble predict ensemble=runs/people/ensemble 'source=[new.csv]' out=runs/new
python -m ensemble.commands.fit …                                      # the same, without an installed command
"""
