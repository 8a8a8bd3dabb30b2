"""Networks. A backbone maps images to features; a head, chosen by the method, maps features to outputs."""
