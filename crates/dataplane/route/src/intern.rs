//! Interning: values that many records have in common are stored once.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use ambit_model::ArcStr;
use hashbrown::{DefaultHashBuilder, HashTable};

/// Number of interned values at which unused ones are first swept.
const INITIAL_SWEEP_SIZE: usize = 1024;

/// Interner, which holds a single copy of every distinct value in use. A sweep drops values without other references;
/// its cost is amortized over insertions.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    values: HashTable<Arc<T>>,
    hasher: DefaultHashBuilder,
    sweep_at: usize,
}

impl<T: Hash + Eq> Default for Interner<T> {
    fn default() -> Self {
        Self {
            values: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            sweep_at: INITIAL_SWEEP_SIZE,
        }
    }
}

impl<T: Hash + Eq> Interner<T> {
    /// Returns the shared copy of `value`.
    pub(crate) fn intern(&mut self, value: T) -> Arc<T> {
        let hash = self.hasher.hash_one(&value);
        if let Some(known) = self.values.find(hash, |known| **known == value) {
            return known.clone();
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = INITIAL_SWEEP_SIZE.max(self.values.len().saturating_mul(2));
        }
        let shared = Arc::new(value);
        let hasher = &self.hasher;
        self.values
            .insert_unique(hash, shared.clone(), |value| hasher.hash_one(value));
        shared
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}

/// Interner of strings, see [`Interner`].
#[derive(Debug)]
pub(crate) struct StringInterner {
    values: HashTable<ArcStr>,
    hasher: DefaultHashBuilder,
    sweep_at: usize,
}

impl Default for StringInterner {
    fn default() -> Self {
        Self {
            values: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            sweep_at: INITIAL_SWEEP_SIZE,
        }
    }
}

impl StringInterner {
    /// Returns the shared copy of `text`.
    pub(crate) fn intern(&mut self, text: &ArcStr) -> ArcStr {
        if text.is_empty() {
            return ArcStr::new();
        }
        let hash = self.hasher.hash_one(text.as_str());
        if let Some(known) = self.values.find(hash, |known| known == text) {
            return known.clone();
        }
        if self.values.len() >= self.sweep_at {
            self.values
                .retain(|text| ArcStr::strong_count(text).is_none_or(|count| count > 1));
            self.sweep_at = INITIAL_SWEEP_SIZE.max(self.values.len().saturating_mul(2));
        }
        let hasher = &self.hasher;
        self.values
            .insert_unique(hash, text.clone(), |text| hasher.hash_one(text.as_str()));
        text.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_interned_once_and_unused_ones_dropped() {
        let mut interner = Interner::default();
        let first = interner.intern("a".to_owned());
        assert!(Arc::ptr_eq(&first, &interner.intern("a".to_owned())));
        for number in 0..10 * INITIAL_SWEEP_SIZE {
            interner.intern(number.to_string());
        }
        assert!(
            interner.len() <= 2 * INITIAL_SWEEP_SIZE,
            "{}",
            interner.len()
        );
        assert!(Arc::ptr_eq(&first, &interner.intern("a".to_owned())));
    }

    #[test]
    fn texts_too() {
        let mut strings = StringInterner::default();
        let first = strings.intern(&"a".into());
        assert!(ArcStr::ptr_eq(&first, &strings.intern(&"a".into())));
        for number in 0..10 * INITIAL_SWEEP_SIZE {
            strings.intern(&number.to_string().into());
        }
        assert!(strings.values.len() <= 2 * INITIAL_SWEEP_SIZE);
    }
}
