//! Compiles the unwind rule of an address that is not in the rule table. It finds the frame
//! description in the sorted table of `.eh_frame_hdr`, runs its call-frame instructions up to the
//! address, and packs the result into a rule. Only the stack pointer, the frame pointer and the
//! return address are followed, since finding the caller needs no more. Source of the format: the
//! Linux Standard Base, chapters on `.eh_frame`, and DWARF 4, section 6.4.

use super::dwarf::*;
use super::rule::{Kind, Rule};
use crate::arch::is_stub;
use crate::arch::registers::{BP, RA, SP, START_CFA, START_RA};
use crate::elf::tables::{DW_EH_PE_DIRECT, DW_EH_PE_FORMAT, DW_EH_PE_TABLE, Tables};
use crate::elf::{Object, search_tables};

/// A range of bytes in the tables. It is small, like all of [`Row`], because this code runs on
/// stacks of 2 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Offset of the first byte from the object's lowest address.
    pub offset: u32,
    /// Length of the range in bytes.
    pub bytes: u32,
}

impl Span {
    /// Returns a reader of the bytes.
    pub(crate) fn tables(self, object: &Object) -> Tables {
        let at = object.bounds().0 + u64::from(self.offset);
        Tables::new(object, at).until(at + u64::from(self.bytes))
    }
}

/// The canonical frame address (CFA), which is the caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cfa {
    /// The value of a register plus an offset.
    Register(u8, i32),
    Expression(Span),
}

/// Where the caller's value of a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saved {
    /// The register is unchanged.
    Same,
    /// The value is lost. For the return address, this marks the outermost frame.
    Undefined,
    /// The value is in memory at the CFA plus an offset.
    AtCfa(i32),
    /// The value is in memory at the address that the expression computes.
    AtExpression(Span),
    /// The value is somewhere that this unwinder does not follow.
    Other,
}

/// The row of the unwind table that applies to an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub cfa: Cfa,
    /// Where the caller's frame pointer is.
    pub bp: Saved,
    /// Where the return address is.
    pub ra: Saved,
    /// Whether the frame is the kernel's signal frame.
    pub signal: bool,
}

struct Cie {
    code_align: u64,
    data_align: i64,
    encoding: u8,
    signal: bool,
    augmented: bool,
    instructions: Tables,
}

/// Returns the rule of an address in an object, or `None` if the object does not describe it.
pub(crate) fn compile(object: &Object, address: u64) -> Option<Rule> {
    let row = row(object, address)?;
    let expression = Rule(Kind::Expression as u64);
    if row.signal {
        return Some(Rule(Kind::Signal as u64));
    }
    if row.ra == Saved::Undefined {
        return Some(Rule(Kind::End as u64));
    }
    // glibc's code that binds a function at its first call has a return address above its CFA, since it
    // does not describe the two words that the linker's stub has pushed.
    #[cfg(target_arch = "aarch64")]
    if let (Cfa::Register(SP, offset), Saved::Same, Saved::AtCfa(8)) = (row.cfa, row.bp, row.ra) {
        return Some(Rule::new(Kind::FromSp, i64::from(offset) + 16, 0).unwrap_or(expression));
    }
    let gap = match row.ra {
        Saved::AtCfa(offset @ ..=-8) if offset % 8 == 0 => u64::from(offset.unsigned_abs()) / 8 - 1,
        _ => return Some(expression),
    };
    let bp_distance = match row.bp {
        Saved::Same | Saved::Undefined => Some(0),
        // Counted in words below the return address.
        Saved::AtCfa(offset @ ..=-16) if offset % 8 == 0 => {
            (u64::from(offset.unsigned_abs()) / 8 - 1).checked_sub(gap).filter(|distance| *distance != 0)
        }
        _ => None,
    };
    let rule = match (row.cfa, bp_distance) {
        (Cfa::Register(SP, offset), Some(distance)) => Rule::with_gap(Kind::FromSp, offset.into(), distance, gap),
        (Cfa::Register(BP, offset), Some(distance)) => Rule::with_gap(Kind::FromBp, offset.into(), distance, gap),
        (Cfa::Expression(span), _) => special(object, span, row.bp),
        _ => None,
    };
    Some(rule.unwrap_or(expression))
}

const DW_OP_BREG_BP: u8 = DW_OP_BREG0 + BP;
/// The expression of linkage stubs, up to the offset of the first push: the
/// stack pointer + 8, and the last four bits of the address.
const PLT_START: [u8; 6] = [DW_OP_BREG0 + SP, 8, DW_OP_BREG0 + RA, 0, DW_OP_LIT0 + 15, DW_OP_AND];
/// The rest of that expression: 8 more at or after that offset.
const PLT_END: [u8; 4] = [DW_OP_GE, DW_OP_LIT0 + 3, DW_OP_SHL, DW_OP_PLUS];

/// Recognizes the two expressions that compilers and linkers write: for linkage stubs and for
/// realigned stacks.
fn special(object: &Object, span: Span, bp: Saved) -> Option<Rule> {
    let mut bytes = [0u8; 16];
    let read = |span: Span, bytes: &mut [u8; 16]| {
        let mut tables = span.tables(object);
        let length = span.bytes.min(16) as usize;
        bytes[..length].iter_mut().try_for_each(|byte| tables.byte().map(|found| *byte = found)).map(|()| length)
    };
    let length = read(span, &mut bytes)?;
    // breg7 8; breg16 0; lit15; and; lit11 (or another literal); ge; lit3; shl; plus
    if length == 11 && bytes[..6] == PLT_START && bytes[7..11] == PLT_END {
        let last = i64::from(bytes[6].checked_sub(DW_OP_LIT0)?);
        return Rule::new(Kind::Plt, last * 8, 0);
    }
    // breg6 offset; deref
    if length == 3 && bytes[0] == DW_OP_BREG_BP && bytes[2] == DW_OP_DEREF {
        let offset = i64::from(((bytes[1] << 1) as i8) >> 1);
        let Saved::AtExpression(span) = bp else { return None };
        let length = read(span, &mut bytes)?;
        return (length == 2 && bytes[..2] == [DW_OP_BREG_BP, 0])
            .then(|| Rule::new(Kind::Realigned, offset, 0))
            .flatten();
    }
    None
}

/// Returns the row that applies to an address.
pub(crate) fn row(object: &Object, address: u64) -> Option<Row> {
    let row = described_row(object, address).or_else(|| is_stub(address).then_some(START));
    #[cfg(target_arch = "aarch64")]
    let row = row.or_else(|| row_of_linker(object, address));
    row
}

/// Returns the row of code that a linker has added.
#[cfg(target_arch = "aarch64")]
#[inline(never)]
fn row_of_linker(object: &Object, address: u64) -> Option<Row> {
    use crate::arch::linker_stubs::{AFTER, BEFORE, Jump, linker_stub};
    let address = address & !3;
    let mut code = [0; BEFORE + AFTER];
    for (index, code) in code.iter_mut().enumerate() {
        let at = address.wrapping_add(4 * index as u64).wrapping_sub(4 * BEFORE as u64);
        // What is outside of the object is no instruction of a stub.
        *code = Tables::new(object, at).number(4).unwrap_or(0) as u32;
    }
    match linker_stub(&code)? {
        Jump::ToFunction(pushed) => Some(Row { cfa: Cfa::Register(SP, START_CFA + pushed), ..START }),
        Jump::ToCode(distance) => described_row(object, address.wrapping_add_signed(distance)),
    }
}

/// Returns the row that the unwind data has for an address.
fn described_row(object: &Object, address: u64) -> Option<Row> {
    let fde = find_fde(object, address)?;
    let mut tables = Tables::new(object, fde);
    let length = tables.number(4)?;
    if length == 0 || length == 0xffff_ffff {
        return None;
    }
    let end = tables.at + length;
    let offset_field = tables.at;
    let cie = read_cie(object, offset_field.checked_sub(tables.number(4)?)?)?;
    let mut tables = tables.until(end);
    let first = tables.pointer(cie.encoding, 0)?;
    let range = tables.pointer(cie.encoding & DW_EH_PE_FORMAT, 0)?;
    if address < first || address - first >= range {
        return None;
    }
    if cie.augmented {
        let bytes = tables.uleb()?;
        tables.at = tables.at.checked_add(bytes)?;
    }
    let mut machine = Machine {
        cie: &cie,
        object,
        row: START,
        initial: (Saved::Same, Saved::Same),
        saved: [START; DEPTH],
        depth: 0,
        location: first,
        address,
    };
    machine.row.signal = cie.signal;
    machine.run(cie.instructions, true)?;
    machine.initial = (machine.row.bp, machine.row.ra);
    machine.run(tables, false)?;
    Some(machine.row)
}

/// Returns a reader of the sorted table in an object's header, the base of its numbers, and the
/// number of its rows.
fn header_rows(object: &Object) -> Option<(Tables, u64, u64)> {
    let header = object.unwind_header;
    let mut tables = Tables::of_header(object, header);
    if tables.byte()? != 1 {
        return None;
    }
    let (frame, count, table) = (tables.byte()?, tables.byte()?, tables.byte()?);
    tables.pointer(frame, header)?;
    let count = tables.pointer(count, header)?;
    (table == DW_EH_PE_TABLE).then_some((tables, header, count))
}

/// Finds the frame description of an address, by binary search in the object's table of (first
/// address, description), or in the recorder's if the linker made none. Like [`read_cie`] it is not
/// inlined, since its frame must be gone when the instructions are run.
#[inline(never)]
fn find_fde(object: &Object, address: u64) -> Option<u64> {
    let (rows, base, count) = match object.unwind_header {
        0 => search_tables::rows(object).map(|(rows, count)| (rows, object.bounds().0, count))?,
        _ => header_rows(object)?,
    };
    if count == 0 {
        return None;
    }
    let entry = |index: u64| {
        let mut tables = rows;
        tables.at = tables.at.checked_add(index.checked_mul(8)?)?;
        let first = base.wrapping_add(tables.signed(4)? as u64);
        Some((first, base.wrapping_add(tables.signed(4)? as u64)))
    };
    let (mut low, mut high) = (0, count);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if entry(middle)?.0 <= address {
            low = middle;
        } else {
            high = middle;
        }
    }
    entry(low).filter(|(first, _)| *first <= address).map(|(_, fde)| fde)
}

/// Returns whether an address is the first of a described function.
pub(crate) fn is_first(object: &Object, address: u64) -> bool {
    find_fde(object, address) != find_fde(object, address.wrapping_sub(1))
}

#[inline(never)]
fn read_cie(object: &Object, at: u64) -> Option<Cie> {
    let mut tables = Tables::new(object, at);
    let length = tables.number(4)?;
    if length == 0 || length == 0xffff_ffff {
        return None;
    }
    let end = tables.at + length;
    let mut tables = tables.until(end);
    if tables.number(4)? != 0 {
        return None;
    }
    let version = tables.byte()?;
    let mut augmentation = [0u8; 8];
    let mut count = 0;
    loop {
        match tables.byte()? {
            0 => break,
            character => *augmentation.get_mut(count)? = character,
        }
        count += 1;
    }
    if version == 4 {
        tables.number(2)?;
    }
    let (code_align, data_align) = (tables.uleb()?, tables.sleb()?);
    if version == 1 {
        tables.byte()?;
    } else {
        tables.uleb()?;
    }
    let mut cie = Cie { code_align, data_align, encoding: 0, signal: false, augmented: false, instructions: tables };
    if augmentation[0] == b'z' {
        cie.augmented = true;
        let bytes = tables.uleb()?;
        let after = tables.at.checked_add(bytes)?;
        for character in augmentation[1..count].iter() {
            match character {
                b'R' => cie.encoding = tables.byte()?,
                b'L' => drop(tables.byte()?),
                b'P' => {
                    let encoding = tables.byte()?;
                    tables.pointer(encoding & DW_EH_PE_DIRECT, 0)?;
                }
                b'S' => cie.signal = true,
                b'B' => {}
                _ => return None,
            }
        }
        tables.at = after;
    } else if count != 0 {
        return None;
    }
    cie.instructions = tables;
    Some(cie)
}

const START: Row = Row {
    cfa: Cfa::Register(SP, START_CFA),
    bp: Saved::Same,
    ra: match START_RA {
        Some(offset) => Saved::AtCfa(offset),
        None => Saved::Same,
    },
    signal: false,
};

/// The most nested `DW_CFA_remember_state`. Compilers write one.
const DEPTH: usize = 3;

struct Machine<'a> {
    cie: &'a Cie,
    object: &'a Object,
    row: Row,
    /// Where the frame pointer and the return address are at the start of the function.
    initial: (Saved, Saved),
    saved: [Row; DEPTH],
    depth: usize,
    location: u64,
    address: u64,
}

impl Machine<'_> {
    fn set(&mut self, register: u64, saved: Saved) {
        match register as u8 {
            _ if register > 255 => {}
            BP => self.row.bp = saved,
            RA => self.row.ra = saved,
            _ => {}
        }
    }

    fn initial(&self, register: u64) -> Saved {
        match register as u8 {
            BP => self.initial.0,
            _ => self.initial.1,
        }
    }

    fn span(&self, tables: &mut Tables) -> Option<Span> {
        let bytes = tables.uleb()?;
        let offset = u32::try_from(tables.at.checked_sub(self.object.bounds().0)?).ok()?;
        tables.at = tables.at.checked_add(bytes)?;
        Some(Span { offset, bytes: u32::try_from(bytes).ok()? })
    }

    fn register(&mut self, register: u64, offset: i64) -> Option<()> {
        self.row.cfa = Cfa::Register(u8::try_from(register).ok()?, i32::try_from(offset).ok()?);
        Some(())
    }

    fn cfa_register(&self) -> u8 {
        if let Cfa::Register(register, _) = self.row.cfa { register } else { SP }
    }

    fn cfa_offset(&self) -> i32 {
        if let Cfa::Register(_, offset) = self.row.cfa { offset } else { 0 }
    }

    /// Runs instructions up to the address. With `initial` they are those of the CIE, and all of
    /// them are run. It's long, and stays in one piece: as two functions, inlined or not, the
    /// library is 256 bytes larger.
    fn run(&mut self, mut code: Tables, initial: bool) -> Option<()> {
        let align = self.cie.data_align;
        let factored =
            |value: u64| i32::try_from((value as i64).wrapping_mul(align)).map_or(Saved::Other, Saved::AtCfa);
        while !code.is_done() {
            let byte = code.byte()?;
            let low = u64::from(byte & 0x3f);
            let mut advance = None;
            match byte >> 6 {
                DW_CFA_ADVANCE_LOC => advance = Some(low),
                DW_CFA_OFFSET => {
                    let saved = factored(code.uleb()?);
                    self.set(low, saved);
                }
                DW_CFA_RESTORE => self.set(low, self.initial(low)),
                _ => match byte {
                    DW_CFA_NOP | DW_CFA_GNU_WINDOW_SAVE => {}
                    DW_CFA_SET_LOC => self.location = code.pointer(self.cie.encoding, 0)?,
                    DW_CFA_ADVANCE_LOC1 => advance = Some(code.number(1)?),
                    DW_CFA_ADVANCE_LOC2 => advance = Some(code.number(2)?),
                    DW_CFA_ADVANCE_LOC4 => advance = Some(code.number(4)?),
                    DW_CFA_OFFSET_EXTENDED => {
                        let register = code.uleb()?;
                        let saved = factored(code.uleb()?);
                        self.set(register, saved);
                    }
                    DW_CFA_RESTORE_EXTENDED => {
                        let register = code.uleb()?;
                        self.set(register, self.initial(register));
                    }
                    DW_CFA_UNDEFINED => {
                        let register = code.uleb()?;
                        self.set(register, Saved::Undefined);
                    }
                    DW_CFA_SAME_VALUE => {
                        let register = code.uleb()?;
                        self.set(register, Saved::Same);
                    }
                    DW_CFA_REGISTER => {
                        let register = code.uleb()?;
                        code.uleb()?;
                        self.set(register, Saved::Other);
                    }
                    DW_CFA_REMEMBER_STATE => {
                        *self.saved.get_mut(self.depth)? = self.row;
                        self.depth += 1;
                    }
                    DW_CFA_RESTORE_STATE => {
                        self.depth = self.depth.checked_sub(1)?;
                        self.row = self.saved[self.depth];
                    }
                    DW_CFA_DEF_CFA => {
                        let register = code.uleb()?;
                        let offset = code.uleb()? as i64;
                        self.register(register, offset)?;
                    }
                    DW_CFA_DEF_CFA_REGISTER => {
                        let register = code.uleb()?;
                        self.register(register, self.cfa_offset().into())?;
                    }
                    DW_CFA_DEF_CFA_OFFSET => {
                        let offset = code.uleb()? as i64;
                        self.register(self.cfa_register().into(), offset)?;
                    }
                    DW_CFA_DEF_CFA_EXPRESSION => self.row.cfa = Cfa::Expression(self.span(&mut code)?),
                    DW_CFA_EXPRESSION => {
                        let register = code.uleb()?;
                        let span = self.span(&mut code)?;
                        self.set(register, Saved::AtExpression(span));
                    }
                    DW_CFA_OFFSET_EXTENDED_SF => {
                        let register = code.uleb()?;
                        let saved = factored(code.sleb()? as u64);
                        self.set(register, saved);
                    }
                    DW_CFA_DEF_CFA_SF => {
                        let register = code.uleb()?;
                        let offset = code.sleb()?.wrapping_mul(align);
                        self.register(register, offset)?;
                    }
                    DW_CFA_DEF_CFA_OFFSET_SF => {
                        let offset = code.sleb()?.wrapping_mul(align);
                        self.register(self.cfa_register().into(), offset)?;
                    }
                    DW_CFA_VAL_OFFSET | DW_CFA_VAL_OFFSET_SF => {
                        let register = code.uleb()?;
                        code.uleb()?;
                        self.set(register, Saved::Other);
                    }
                    DW_CFA_VAL_EXPRESSION => {
                        let register = code.uleb()?;
                        self.span(&mut code)?;
                        self.set(register, Saved::Other);
                    }
                    DW_CFA_GNU_ARGS_SIZE => drop(code.uleb()?),
                    DW_CFA_GNU_NEGATIVE_OFFSET_EXTENDED => {
                        let register = code.uleb()?;
                        let saved = factored(code.uleb()?.wrapping_neg());
                        self.set(register, saved);
                    }
                    _ => return None,
                },
            }
            if let Some(steps) = advance {
                self.location = self.location.wrapping_add(steps.wrapping_mul(self.cie.code_align));
            }
            if !initial && self.location > self.address {
                return Some(());
            }
        }
        Some(())
    }
}
