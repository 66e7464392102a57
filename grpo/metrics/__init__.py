"""The metrics of a step: what each means, who records them, how they are computed."""
