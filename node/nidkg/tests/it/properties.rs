//! Key generations of every small shape.
