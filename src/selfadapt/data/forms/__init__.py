"""Forms in which people keep labelled data: tables, Hugging Face datasets, exports of annotation tools."""
