//! Numbers that look random, for a demo that needs no more than that.

/// SplitMix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Random {
        Random(everfold::Uuid::now_v7().as_u128() as u64)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
