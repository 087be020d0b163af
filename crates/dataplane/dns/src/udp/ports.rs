//! Source ports of a pod's queries. The kernel may still redirect datagrams from such a port after another socket has
//! bound it.

/// Number of 64-bit words in a bitmap with a bit for each port.
const BITMAP_WORDS: usize = (u16::MAX as usize + 1) / 64;

/// Set of ports as a bitmap, which is allocated only when the first port is inserted.
#[derive(Clone, Debug, Default)]
pub(super) struct PortSet(Option<Box<[u64; BITMAP_WORDS]>>);

impl PortSet {
    pub(super) fn insert(&mut self, port: u16) {
        let words = self.0.get_or_insert_with(|| Box::new([0; BITMAP_WORDS]));
        if let Some(word) = words.get_mut(usize::from(port / 64)) {
            *word |= 1 << (port % 64);
        }
    }

    /// Returns the ports in ascending order.
    pub(super) fn list(&self) -> Vec<u16> {
        let Some(words) = &self.0 else {
            return Vec::new();
        };
        let has = |port: &u16| {
            let word = words.get(usize::from(port / 64));
            word.is_some_and(|word| word & (1 << (port % 64)) != 0)
        };
        (0..=u16::MAX).filter(has).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_listed_once_and_in_order() {
        let mut ports = PortSet::default();
        assert_eq!(ports.list(), [0; 0]);
        for port in [u16::MAX, 0, 64, 63, 64] {
            ports.insert(port);
        }
        assert_eq!(ports.list(), [0, 63, 64, u16::MAX]);
    }
}
