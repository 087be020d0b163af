//! Compares decisions with the reference implementation.

use proptest::prelude::*;

use super::super::naive;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn decisions_equal_the_naive_reference(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        naive::compare_with_reference(&bytes);
    }
}
