"""The commands of the installed package, one module each. scripts/ has a file of the same name for each command.

main.py is the console command `accelerate-ensemble`, and imports.py speeds up the imports of libraries.

accelerate-ensemble fit 'source=[people.csv]' target=income out=runs/people
accelerate-ensemble predict ensemble=runs/people/ensemble 'source=[new.csv]' out=runs/new
python -m ensemble.commands.fit …                                      # the same, without an installed command
"""
