//! Tests of parts of the program within one process; tests over its ports are in `tests/`.

mod vectors;
