"""table: any table of the user's, with a target that is binary, multiclass, a number or a relevance."""
