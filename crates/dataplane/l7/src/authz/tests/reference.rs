//! Decisions are those of the naive reading.

use proptest::prelude::*;

use super::super::naive;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn decisions_are_those_of_the_naive_reading(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        naive::compare(&bytes);
    }
}
