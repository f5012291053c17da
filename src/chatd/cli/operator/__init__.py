"""Commands of an operator: examine a deployment and its settings, collect what a report needs."""
