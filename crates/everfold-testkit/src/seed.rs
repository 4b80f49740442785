//! Randomness that can be repeated.

use std::ops::Range;

/// A small generator (splitmix64) whose whole future follows from one number.
///
/// ```
/// let mut one = everfold_testkit::Seed::new(7);
/// let mut other = everfold_testkit::Seed::new(7);
/// assert_eq!(one.below(1000), other.below(1000));
/// ```
#[derive(Clone, Debug)]
pub struct Seed {
    seed: u64,
    state: u64,
}

impl Seed {
    /// The seed in `EVERFOLD_SEED`, or a new one. It is printed, so that a failure can be replayed.
    ///
    /// # Panics
    ///
    /// When `EVERFOLD_SEED` is not a decimal number that fits 64 bits.
    pub fn from_env_or_random() -> Seed {
        let seed = match std::env::var("EVERFOLD_SEED") {
            Ok(text) => text.trim().parse().expect("EVERFOLD_SEED is a number that fits 64 bits"),
            Err(_) => uuid::Uuid::now_v7().as_u64_pair().1,
        };
        println!("EVERFOLD_SEED={seed}");
        Seed::new(seed)
    }

    /// A generator that starts from `seed`.
    pub fn new(seed: u64) -> Seed {
        Seed { seed, state: seed }
    }

    /// The number this generator started from.
    pub fn value(&self) -> u64 {
        self.seed
    }

    /// A generator of its own for one of several tasks, so that their interleaving does not change
    /// what each of them does.
    pub fn fork(&mut self) -> Seed {
        Seed::new(self.next_u64())
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number from 0 up to, not including, `limit`.
    ///
    /// # Panics
    ///
    /// When `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "there is no number below 0");
        // The high half of the product: as even as 64 bits allow, without a division.
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// A number of `range`.
    ///
    /// # Panics
    ///
    /// When `range` is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// True with the given probability: never at 0.0, always at 1.0.
    pub fn chance(&mut self, probability: f64) -> bool {
        let unit = (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        unit < probability
    }

    /// One of `items`.
    ///
    /// # Panics
    ///
    /// When `items` is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Seed;

    #[test]
    fn same_seed_gives_the_same_numbers() {
        let numbers = |seed| {
            let mut seed = Seed::new(seed);
            std::iter::repeat_with(|| seed.next_u64()).take(100).collect::<Vec<_>>()
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
    }

    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut seed = Seed::new(1_234_567);
        assert_eq!(seed.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(seed.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn below_stays_below_and_reaches_every_number() {
        let mut seed = Seed::new(3);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[seed.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }

    #[test]
    fn chance_is_exact_at_its_ends() {
        let mut seed = Seed::new(4);
        assert!((0..1000).all(|_| !seed.chance(0.0)));
        assert!((0..1000).all(|_| seed.chance(1.0)));
        let hits = (0..10_000).filter(|_| seed.chance(0.25)).count();
        assert!((2200..2800).contains(&hits), "{hits}");
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut seed = Seed::new(5);
        let mut items: Vec<u32> = (0..100).collect();
        seed.shuffle(&mut items);
        assert!(items.iter().is_sorted_by(|one, other| one != other));
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        assert!(seed.within(5..6) == 5 && items.contains(seed.pick(&[1, 2])));
    }
}
