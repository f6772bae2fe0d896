"""The private code of Bushel. Users import from the doors above: `bushel`, `bushel.sources` and so on."""
