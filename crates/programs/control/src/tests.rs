//! Tests of the parts of the program in one process, beside those over its ports.

mod vectors;
