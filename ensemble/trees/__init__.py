"""Tree members, trained on CPU cores by XGBoost, LightGBM and CatBoost, and linear members.

Call `threads.configure` before a module of this package imports one of the libraries: OpenMP reads its settings only once.
"""
