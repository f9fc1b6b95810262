"""The search: the smallest format that meets a contract, with bits given to layers and heads by isolated KL."""
