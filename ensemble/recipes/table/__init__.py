"""table: any table with a binary, multiclass, regression or ranking target."""
