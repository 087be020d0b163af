//! Weighted random choice among backends.

use rand::{Rng, RngCore};

/// Picks an index at random, by weight; `None` if all weights are zero.
pub(crate) fn pick_weighted_index(
    weights: impl Iterator<Item = u32> + Clone,
    rng: &mut dyn RngCore,
) -> Option<usize> {
    let total: u64 = weights.clone().map(u64::from).sum();
    if total == 0 {
        return None;
    }
    let mut drawn = rng.random_range(0..total);
    let mut weights = weights.map(u64::from);
    weights.position(|weight| {
        let is_drawn = drawn < weight;
        drawn = drawn.saturating_sub(weight);
        is_drawn
    })
}
