//! Tests of parts of the program within one process; those over its ports are in `tests/`.

mod vectors;
