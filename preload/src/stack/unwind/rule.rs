//! A rule: how to step from a frame to its caller, as one 64-bit word.
//!
//! ```text
//! bits 0..4 kind | 4..27, 30..32 numbers | 27..30 marks | 32..64 tag
//! ```
//! The numbers are the offset, the location of the saved frame pointer in words below the return
//! address (0 if it was not saved), and the number of words between the return address and the CFA,
//! as [`packed`] has them. The tag is that of the rule table ([`super::rules`]).

use crate::arch::registers::packed;

/// How to compute the CFA (the stack pointer before the call) from the registers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// CFA = stack pointer + offset.
    FromSp = 1,
    /// CFA = frame pointer + offset.
    FromBp = 2,
    /// The outermost frame, which has no caller.
    End = 3,
    /// The kernel's signal frame, which holds the registers in memory.
    Signal = 4,
    /// A procedure linkage stub: CFA = stack pointer + 8, and 8 more after its first push.
    Plt = 5,
    /// A realigned stack: CFA = word at frame pointer + offset; the frame pointer is
    /// saved where it points.
    Realigned = 6,
    /// Anything else that DWARF can express. The tables are interpreted again with the registers.
    Expression = 7,
    /// No unwind data: a frame-pointer step, which is a guess.
    Unknown = 8,
}

/// A compiled rule, as one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule(pub u64);

/// Mark: whether a return can go to the address is known.
const CHECKED: u64 = 1 << 27;
/// Mark: a return can go to the address, since a call is before it, or it is where the kernel or a
/// hand-made frame returns to.
const TARGET: u64 = 1 << 28;
/// Mark: the address is in no object. Words in the rule table have its opposite.
pub(super) const GENERATED: u64 = 1 << 29;

impl Rule {
    /// No unwind data.
    pub(crate) const UNKNOWN: Rule = Rule(Kind::Unknown as u64);
    /// The outermost frame.
    pub(crate) const END: Rule = Rule(Kind::End as u64);
    /// The outermost frame, made by hand: its address is the start of a function, to which no call
    /// returns. Such a frame has no offset, so one tells it from other ends.
    pub(crate) const HAND_MADE: Rule = Rule(Kind::End as u64 | 1 << 4).checked(true);

    /// Returns the rule with the mark whether a return can go to the address.
    pub(crate) const fn checked(self, is_target: bool) -> Rule {
        Rule(self.0 & !TARGET | CHECKED | if is_target { TARGET } else { 0 })
    }
    /// Returns whether a return can go to the address, if that is known.
    pub(crate) const fn is_target(self) -> Option<bool> {
        if self.0 & CHECKED != 0 { Some(self.0 & TARGET != 0) } else { None }
    }
    /// Returns the rule with the mark of an address in no object.
    pub(crate) const fn generated(self) -> Rule {
        Rule(self.0 | GENERATED)
    }
    /// Returns whether the address was in no object.
    pub(crate) const fn is_generated(self) -> bool {
        self.0 & GENERATED != 0
    }
    /// Packs a rule whose return address is the last word below the CFA. Returns `None` if a number
    /// does not fit.
    pub(crate) fn new(kind: Kind, offset: i64, bp_distance: u64) -> Option<Rule> {
        Rule::with_gap(kind, offset, bp_distance, 0)
    }
    /// Packs a rule with `gap` words between the return address and the CFA. Returns `None` if a
    /// number does not fit.
    pub(crate) fn with_gap(kind: Kind, offset: i64, bp_distance: u64, gap: u64) -> Option<Rule> {
        packed::pack(offset, bp_distance, gap).map(|numbers| Rule(kind as u64 | numbers))
    }
    /// Returns the number of the [`Kind`].
    #[inline(always)]
    pub(crate) const fn kind(self) -> u64 {
        self.0 & 15
    }
    /// Returns whether the frame is [`Rule::HAND_MADE`].
    pub(crate) const fn is_hand_made(self) -> bool {
        self.0 & 31 == Rule::HAND_MADE.0 & 31
    }
    /// Returns whether the kind is one of the two that nearly all code has: CFA from the
    /// stack pointer or from the frame pointer.
    #[inline(always)]
    pub(crate) const fn is_usual(self) -> bool {
        self.kind() <= Kind::FromBp as u64
    }
    /// Returns whether only the unwind data of an object can have told the rule.
    pub(crate) const fn is_described(self) -> bool {
        const KINDS: u64 = 1 << Kind::FromSp as u64
            | 1 << Kind::FromBp as u64
            | 1 << Kind::Plt as u64
            | 1 << Kind::Realigned as u64
            | 1 << Kind::Expression as u64;
        KINDS >> self.kind() & 1 != 0 && !self.is_generated()
    }
    /// Returns whether the CFA is computed from the stack pointer.
    #[inline(always)]
    pub(crate) const fn is_from_sp(self) -> bool {
        self.kind() == Kind::FromSp as u64
    }
    /// Returns whether the step depends on the frame pointer.
    #[inline(always)]
    pub(crate) const fn uses_bp(self) -> bool {
        !self.is_from_sp() && self.kind() != Kind::End as u64
    }
    /// Returns the offset in bytes.
    #[inline(always)]
    pub(crate) const fn offset(self) -> i64 {
        packed::offset(self.0)
    }
    /// Returns how many words below the return address the frame pointer was saved; 0 if it
    /// is the caller's.
    #[inline(always)]
    pub(crate) const fn bp_distance(self) -> u64 {
        packed::distance(self.0)
    }
    /// Returns the number of words between the return address and the CFA.
    #[inline(always)]
    pub(crate) const fn gap(self) -> u64 {
        packed::gap(self.0)
    }
}
