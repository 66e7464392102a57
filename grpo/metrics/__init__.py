"""The numbers of a step: what each means, who notes them, how they are computed."""
