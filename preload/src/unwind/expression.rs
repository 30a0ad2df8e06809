//! DWARF expressions of the few functions whose rule fits no compact form: interpreted at every
//! step. Source: DWARF 4, section 2.5.

use super::cfi::{self, Cfa, Saved, Span};
use super::machine::{BP, RA, Registers, SP};
use super::objects::{self, Object};
use super::walk::Memory;

/// The caller's state: CFA, return address, frame pointer.
pub struct Stepped {
    /// Address of the return address's word.
    pub slot: u64,
    /// Return address.
    pub address: u64,
    /// Frame pointer.
    pub bp: u64,
    /// CFA.
    pub cfa: u64,
}

/// Steps by interpreting the tables; `None` when something is needed that is not followed, or lies
/// outside the stack.
pub fn step(registers: Registers, memory: &mut impl Memory) -> Option<Stepped> {
    let object = objects::find(registers.lookup as usize)?;
    let row = cfi::row(&object, registers.lookup)?;
    let cfa = match row.cfa {
        Cfa::Register(SP, offset) => registers.sp.wrapping_add_signed(offset.into()),
        Cfa::Register(BP, offset) => registers.bp.wrapping_add_signed(offset.into()),
        Cfa::Register(..) => return None,
        Cfa::Expression(span) => evaluate(&object, span, registers, None, memory)?,
    };
    let mut place = |saved: Saved| match saved {
        Saved::AtCfa(offset) => Some(cfa.wrapping_add_signed(offset.into())),
        Saved::AtExpression(span) => evaluate(&object, span, registers, Some(cfa), memory),
        _ => None,
    };
    let slot = place(row.ra)?;
    let bp_slot = match row.bp {
        Saved::Same | Saved::Undefined => None,
        saved => Some(place(saved)?),
    };
    let address = memory.word(slot)?;
    let bp = match bp_slot {
        None => registers.bp,
        Some(slot) => memory.word(slot)?,
    };
    Some(Stepped { slot, address, bp, cfa })
}

/// The value of an expression; `first` is pushed before it starts.
fn evaluate(
    object: &Object,
    span: Span,
    registers: Registers,
    first: Option<u64>,
    memory: &mut impl Memory,
) -> Option<u64> {
    const DEPTH: usize = 16;
    /// Operations of one expression: branches must not loop for ever.
    const MOST: usize = 256;
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
    for _ in 0..MOST {
        if code.is_done() {
            return Some(pop!());
        }
        let op = code.byte()?;
        match op {
            0x03 => push!(code.number(8)?),
            0x06 => {
                let address = pop!();
                push!(memory.word(address)?);
            }
            0x08 => push!(code.number(1)?),
            0x09 => push!(code.signed(1)? as u64),
            0x0a => push!(code.number(2)?),
            0x0b => push!(code.signed(2)? as u64),
            0x0c => push!(code.number(4)?),
            0x0d => push!(code.signed(4)? as u64),
            0x0e | 0x0f => push!(code.number(8)?),
            0x10 => push!(code.uleb()?),
            0x11 => push!(code.sleb()? as u64),
            0x12 => {
                let top = pop!();
                push!(top);
                push!(top);
            }
            0x13 => drop(pop!()),
            0x14 => push!(*stack.get(depth.checked_sub(2)?)?),
            0x16 => {
                let (top, below) = (pop!(), pop!());
                push!(top);
                push!(below);
            }
            0x19 => {
                let top = pop!() as i64;
                push!(top.wrapping_abs() as u64);
            }
            0x1f => {
                let top = pop!();
                push!(top.wrapping_neg());
            }
            0x20 => {
                let top = pop!();
                push!(!top);
            }
            0x23 => {
                let top = pop!();
                push!(top.wrapping_add(code.uleb()?));
            }
            0x28 => {
                let distance = code.signed(2)?;
                if pop!() != 0 {
                    code.at = code.at.wrapping_add_signed(distance);
                }
            }
            0x2f => {
                let distance = code.signed(2)?;
                code.at = code.at.wrapping_add_signed(distance);
            }
            0x1a..=0x2e => {
                let (right, left) = (pop!(), pop!());
                let (signed_left, signed_right) = (left as i64, right as i64);
                push!(match op {
                    0x1a => left & right,
                    0x1b => signed_left.checked_div(signed_right)? as u64,
                    0x1c => left.wrapping_sub(right),
                    0x1d => left.checked_rem(right)?,
                    0x1e => left.wrapping_mul(right),
                    0x21 => left | right,
                    0x22 => left.wrapping_add(right),
                    0x24 => left.checked_shl(right as u32).unwrap_or(0),
                    0x25 => left.checked_shr(right as u32).unwrap_or(0),
                    0x26 => signed_left.checked_shr(right as u32).unwrap_or(signed_left >> 63) as u64,
                    0x27 => left ^ right,
                    0x29 => u64::from(left == right),
                    0x2a => u64::from(signed_left >= signed_right),
                    0x2b => u64::from(signed_left > signed_right),
                    0x2c => u64::from(signed_left <= signed_right),
                    0x2d => u64::from(signed_left < signed_right),
                    _ => u64::from(left != right),
                });
            }
            0x30..=0x4f => push!(u64::from(op - 0x30)),
            0x70..=0x8f => {
                let base = register(u64::from(op - 0x70))?;
                push!(base.wrapping_add_signed(code.sleb()?));
            }
            0x92 => {
                let number = code.uleb()?;
                push!(register(number)?.wrapping_add_signed(code.sleb()?));
            }
            0x96 => {}
            _ => return None,
        }
    }
    None
}
