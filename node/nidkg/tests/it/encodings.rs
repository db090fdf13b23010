//! Encodings: canonical, length-checked, pinned.
