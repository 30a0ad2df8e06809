//! Interprets the DWARF expressions of the few functions whose unwind rule has no compact form.
//! They are interpreted at every step. Source: DWARF 4, section 2.5.

use super::cfi::{self, Cfa, Saved, Span};
use super::dwarf::*;
use crate::arch::registers::{BP, RA, Registers, SP};
use crate::elf::{Object, objects};

/// The state of the calling frame.
pub(crate) struct Stepped {
    /// Address of the word that holds the return address.
    pub slot: u64,
    /// The caller's return address.
    pub address: u64,
    /// The caller's frame pointer.
    pub bp: u64,
    /// The canonical frame address.
    pub cfa: u64,
}

/// Steps to the caller by interpreting the tables. Returns `None` if the step needs a value that is
/// not followed, or that is outside the stack. `word` reads the stack, as [`Memory::word`] does:
/// one copy of this rare code serves all kinds of stacks.
///
/// [`Memory::word`]: super::memory::Memory::word
pub(crate) fn step(registers: Registers, word: &mut dyn FnMut(u64) -> Option<u64>) -> Option<Stepped> {
    let object = objects::find(registers.lookup as usize)?;
    let row = cfi::row(&object, registers.lookup)?;
    let cfa = match row.cfa {
        Cfa::Register(SP, offset) => registers.sp.wrapping_add_signed(offset.into()),
        Cfa::Register(BP, offset) => registers.bp.wrapping_add_signed(offset.into()),
        Cfa::Register(..) => return None,
        Cfa::Expression(span) => evaluate(&object, span, registers, None, word)?,
    };
    let mut address_of = |saved: Saved| match saved {
        Saved::Same => registers.link(),
        Saved::AtCfa(offset) => Some(cfa.wrapping_add_signed(offset.into())),
        Saved::AtExpression(span) => evaluate(&object, span, registers, Some(cfa), word),
        _ => None,
    };
    let slot = address_of(row.ra)?;
    let bp_slot = match row.bp {
        Saved::Same | Saved::Undefined => None,
        saved => Some(address_of(saved)?),
    };
    let address = word(slot)?;
    let bp = match bp_slot {
        None => registers.bp,
        Some(slot) => word(slot)?,
    };
    Some(Stepped { slot, address, bp, cfa })
}

/// Returns the value of an expression. `first` is pushed before it starts.
fn evaluate(
    object: &Object,
    span: Span,
    registers: Registers,
    first: Option<u64>,
    word: &mut dyn FnMut(u64) -> Option<u64>,
) -> Option<u64> {
    const DEPTH: usize = 16;
    /// The most operations of one expression, so that branches cannot loop for ever.
    const MAX_OPERATIONS: usize = 256;
    let mut stack = [0u64; DEPTH];
    let mut depth = 0;
    let mut code = span.tables(object);
    macro_rules! push {
        ($value:expr) => {{
            let value = $value;
            *stack.get_mut(depth)? = value;
            depth += 1;
        }};
    }
    macro_rules! pop {
        () => {{
            depth = depth.checked_sub(1)?;
            stack[depth]
        }};
    }
    let register = |number: u64| match number as u8 {
        _ if number > 255 => None,
        SP => Some(registers.sp),
        BP => Some(registers.bp),
        RA => Some(registers.lookup),
        _ => None,
    };
    if let Some(value) = first {
        push!(value);
    }
    for _ in 0..MAX_OPERATIONS {
        if code.is_done() {
            return Some(pop!());
        }
        let op = code.byte()?;
        match op {
            DW_OP_ADDR => push!(code.number(8)?),
            DW_OP_DEREF => {
                let address = pop!();
                push!(word(address)?);
            }
            DW_OP_CONST1U => push!(code.number(1)?),
            DW_OP_CONST1S => push!(code.signed(1)? as u64),
            DW_OP_CONST2U => push!(code.number(2)?),
            DW_OP_CONST2S => push!(code.signed(2)? as u64),
            DW_OP_CONST4U => push!(code.number(4)?),
            DW_OP_CONST4S => push!(code.signed(4)? as u64),
            DW_OP_CONST8U | DW_OP_CONST8S => push!(code.number(8)?),
            DW_OP_CONSTU => push!(code.uleb()?),
            DW_OP_CONSTS => push!(code.sleb()? as u64),
            DW_OP_DUP => {
                let top = pop!();
                push!(top);
                push!(top);
            }
            DW_OP_DROP => drop(pop!()),
            DW_OP_OVER => push!(*stack.get(depth.checked_sub(2)?)?),
            DW_OP_SWAP => {
                let (top, below) = (pop!(), pop!());
                push!(top);
                push!(below);
            }
            DW_OP_ABS => {
                let top = pop!() as i64;
                push!(top.wrapping_abs() as u64);
            }
            DW_OP_NEG => {
                let top = pop!();
                push!(top.wrapping_neg());
            }
            DW_OP_NOT => {
                let top = pop!();
                push!(!top);
            }
            DW_OP_PLUS_UCONST => {
                let top = pop!();
                push!(top.wrapping_add(code.uleb()?));
            }
            DW_OP_BRA => {
                let distance = code.signed(2)?;
                if pop!() != 0 {
                    code.at = code.at.wrapping_add_signed(distance);
                }
            }
            DW_OP_SKIP => {
                let distance = code.signed(2)?;
                code.at = code.at.wrapping_add_signed(distance);
            }
            DW_OP_AND..=DW_OP_NE => {
                let (right, left) = (pop!(), pop!());
                push!(binary(op, left, right)?);
            }
            DW_OP_LIT0..=DW_OP_LIT31 => push!(u64::from(op - DW_OP_LIT0)),
            DW_OP_BREG0..=DW_OP_BREG31 => {
                let base = register(u64::from(op - DW_OP_BREG0))?;
                push!(base.wrapping_add_signed(code.sleb()?));
            }
            DW_OP_BREGX => {
                let number = code.uleb()?;
                push!(register(number)?.wrapping_add_signed(code.sleb()?));
            }
            DW_OP_NOP => {}
            _ => return None,
        }
    }
    None
}

/// Returns the value of an operation on two values: arithmetic, or a comparison.
#[inline(always)]
fn binary(op: u8, left: u64, right: u64) -> Option<u64> {
    let (signed_left, signed_right) = (left as i64, right as i64);
    Some(match op {
        DW_OP_AND => left & right,
        DW_OP_DIV => signed_left.checked_div(signed_right)? as u64,
        DW_OP_MINUS => left.wrapping_sub(right),
        DW_OP_MOD => left.checked_rem(right)?,
        DW_OP_MUL => left.wrapping_mul(right),
        DW_OP_OR => left | right,
        DW_OP_PLUS => left.wrapping_add(right),
        DW_OP_SHL => left.checked_shl(right as u32).unwrap_or(0),
        DW_OP_SHR => left.checked_shr(right as u32).unwrap_or(0),
        DW_OP_SHRA => signed_left.checked_shr(right as u32).unwrap_or(signed_left >> 63) as u64,
        DW_OP_XOR => left ^ right,
        DW_OP_EQ => u64::from(left == right),
        DW_OP_GE => u64::from(signed_left >= signed_right),
        DW_OP_GT => u64::from(signed_left > signed_right),
        DW_OP_LE => u64::from(signed_left <= signed_right),
        DW_OP_LT => u64::from(signed_left < signed_right),
        _ => u64::from(left != right), // DW_OP_NE
    })
}
