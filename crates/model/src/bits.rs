//! Sets and lists of a few small numbers, each in one word: states are copied and hashed by the million.

/// A position in the log. The first is 1.
pub(crate) type Position = u8;

/// A set of positions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Positions(u16);

impl Positions {
    pub(crate) fn insert(&mut self, position: Position) {
        self.0 |= 1 << position;
    }

    pub(crate) fn remove(&mut self, position: Position) {
        self.0 &= !(1 << position);
    }

    pub(crate) fn contains(self, position: Position) -> bool {
        self.0 & (1 << position) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The highest one, 0 if there is none.
    pub(crate) fn highest(self) -> Position {
        self.iter().last().unwrap_or(0)
    }

    pub(crate) fn and(self, other: Positions) -> Positions {
        Positions(self.0 & other.0)
    }

    pub(crate) fn or(self, other: Positions) -> Positions {
        Positions(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Positions) -> Positions {
        Positions(self.0 & !other.0)
    }

    pub(crate) fn up_to(self, position: Position) -> Positions {
        Positions(self.0 & ((1 << (position + 1)) - 1))
    }

    pub(crate) fn after(self, position: Position) -> Positions {
        self.without(self.up_to(position))
    }

    /// In ascending order.
    pub(crate) fn iter(self) -> impl DoubleEndedIterator<Item = Position> {
        (1..16).filter(move |position| self.contains(*position))
    }
}

impl FromIterator<Position> for Positions {
    fn from_iter<I: IntoIterator<Item = Position>>(positions: I) -> Positions {
        let mut set = Positions::default();
        positions.into_iter().for_each(|position| set.insert(position));
        set
    }
}

/// Positions in the order in which they were applied: four bits each, the latest in the lowest.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Order(u64);

impl Order {
    pub(crate) fn push(&mut self, position: Position) {
        self.0 = self.0 << 4 | u64::from(position);
    }

    /// The latest first.
    fn backward(self) -> impl Iterator<Item = Position> {
        (0..16).map(move |n| (self.0 >> (4 * n) & 15) as Position).take_while(|p| *p != 0)
    }

    pub(crate) fn positions(self) -> Positions {
        self.backward().collect()
    }

    pub(crate) fn has_repeats(self) -> bool {
        self.positions().len() as usize != self.backward().count()
    }

    /// Never down. A repeat is another matter.
    pub(crate) fn rises(self) -> bool {
        self.backward().zip(self.backward().skip(1)).all(|(later, earlier)| later >= earlier)
    }
}

/// A set of actors, generations, streams or keys.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Few(u8);

impl Few {
    pub(crate) fn insert(&mut self, one: usize) {
        self.0 |= 1 << one;
    }

    pub(crate) fn remove(&mut self, one: usize) {
        self.0 &= !(1 << one);
    }

    pub(crate) fn contains(self, one: usize) -> bool {
        self.0 & (1 << one) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |one| self.contains(*one))
    }
}

impl FromIterator<usize> for Few {
    fn from_iter<I: IntoIterator<Item = usize>>(some: I) -> Few {
        let mut set = Few::default();
        some.into_iter().for_each(|one| set.insert(one));
        set
    }
}
