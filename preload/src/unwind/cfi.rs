//! The miss: finds the frame description of one address in `.eh_frame_hdr`'s sorted table, runs its
//! call-frame instructions up to the address, and leaves a rule. Only rsp, rbp and the return
//! address are followed: a caller needs no more. Source of the format: the System V ABI for x86-64,
//! chapters on `.eh_frame`, and DWARF 4, section 6.4.

use super::machine::{BP, RA, SP};
use super::objects::Object;
use super::rules::{Kind, Rule};
use super::tables::Tables;

/// A place of bytes in the tables. Small, as all of [`Row`]: this runs on stacks of two KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte, from the object's start.
    pub offset: u32,
    /// Length.
    pub bytes: u32,
}

impl Span {
    /// The bytes.
    pub fn tables(self, object: &Object) -> Tables {
        let at = object.start + u64::from(self.offset);
        Tables::new(object, at).until(at + u64::from(self.bytes))
    }
}

/// Where the caller's stack pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// Register plus offset.
    Register(u8, i32),
    /// What the expression gives.
    Expression(Span),
}

/// Where a register of the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// In the register still.
    Same,
    /// Nowhere: for the return address, the outermost frame.
    Undefined,
    /// In memory at CFA plus offset.
    AtCfa(i32),
    /// In memory where the expression says.
    AtExpression(Span),
    /// Something that is not followed.
    Other,
}

/// The row of the table that holds at an address.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The CFA.
    pub cfa: Cfa,
    /// The caller's rbp.
    pub bp: Saved,
    /// The return address.
    pub ra: Saved,
    /// The frame is the kernel's.
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

/// The rule of an address in an object; `None` when the object does not describe it.
pub fn compile(object: &Object, address: u64) -> Option<Rule> {
    let row = row(object, address)?;
    let expression = Rule(Kind::Expression as u64);
    if row.signal {
        return Some(Rule(Kind::Signal as u64));
    }
    if row.ra == Saved::Undefined {
        return Some(Rule(Kind::End as u64));
    }
    if row.ra != Saved::AtCfa(-8) {
        return Some(expression);
    }
    let bp_words = match row.bp {
        Saved::Same | Saved::Undefined => Some(0),
        // In words below the return address, which lies at CFA - 8.
        Saved::AtCfa(offset) if offset <= -16 && offset % 8 == 0 => Some(u64::from(offset.unsigned_abs()) / 8 - 1),
        _ => None,
    };
    let rule = match (row.cfa, bp_words) {
        (Cfa::Register(SP, offset), Some(words)) => Rule::new(Kind::FromSp, offset.into(), words),
        (Cfa::Register(BP, offset), Some(words)) => Rule::new(Kind::FromBp, offset.into(), words),
        (Cfa::Expression(span), _) => special(object, span, row.bp),
        _ => None,
    };
    Some(rule.unwrap_or(expression))
}

/// The two expressions that compilers and linkers write: linkage stubs and realigned stacks.
fn special(object: &Object, span: Span, bp: Saved) -> Option<Rule> {
    let mut bytes = [0u8; 16];
    let read = |span: Span, bytes: &mut [u8; 16]| {
        let mut tables = span.tables(object);
        let length = span.bytes.min(16) as usize;
        bytes[..length].iter_mut().try_for_each(|byte| tables.byte().map(|found| *byte = found)).map(|()| length)
    };
    let length = read(span, &mut bytes)?;
    // breg7 8; breg16 0; lit15; and; lit11 (or another); ge; lit3; shl; plus
    if length == 11 && bytes[..6] == [0x77, 8, 0x80, 0, 0x3f, 0x1a] && bytes[7..11] == [0x2a, 0x33, 0x24, 0x22] {
        let last = i64::from(bytes[6].checked_sub(0x30)?);
        return Rule::new(Kind::Plt, last * 8, 0);
    }
    // breg6 offset; deref
    if length == 3 && bytes[0] == 0x76 && bytes[2] == 0x06 {
        let offset = i64::from(((bytes[1] << 1) as i8) >> 1);
        let Saved::AtExpression(place) = bp else { return None };
        let length = read(place, &mut bytes)?;
        return (length == 2 && bytes[..2] == [0x76, 0]).then(|| Rule::new(Kind::Realigned, offset, 0)).flatten();
    }
    None
}

/// The row that holds at an address.
pub fn row(object: &Object, address: u64) -> Option<Row> {
    let fde = find_fde(object, address)?;
    let mut tables = Tables::new(object, fde);
    let length = tables.number(4)?;
    if length == 0 || length == 0xffff_ffff {
        return None;
    }
    let end = tables.at + length;
    let place = tables.at;
    let cie = read_cie(object, place.checked_sub(tables.number(4)?)?)?;
    let mut tables = tables.until(end);
    let first = tables.pointer(cie.encoding, 0)?;
    let range = tables.pointer(cie.encoding & 0x0f, 0)?;
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
        first_row: START,
        saved: [START; DEPTH],
        depth: 0,
        location: first,
        address,
    };
    machine.row.signal = cie.signal;
    machine.run(cie.instructions, true)?;
    machine.first_row = machine.row;
    machine.run(tables, false)?;
    Some(machine.row)
}

/// Binary search in the header's table of (first address, description).
fn find_fde(object: &Object, address: u64) -> Option<u64> {
    let header = object.unwind_header;
    let mut tables = Tables::new(object, header);
    if header == 0 || tables.byte()? != 1 {
        return None;
    }
    let (frame, count, table) = (tables.byte()?, tables.byte()?, tables.byte()?);
    tables.pointer(frame, header)?;
    let count = tables.pointer(count, header)?;
    // 4-byte signed, relative to the header: what every linker writes.
    if table != 0x3b || count == 0 {
        return None;
    }
    let rows = tables.at;
    let entry = |index: u64| {
        let mut tables = Tables::new(object, rows.checked_add(index.checked_mul(8)?)?);
        let first = header.wrapping_add(tables.signed(4)? as u64);
        Some((first, header.wrapping_add(tables.signed(4)? as u64)))
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
    let mut letters = [0u8; 8];
    let mut count = 0;
    loop {
        match tables.byte()? {
            0 => break,
            letter => *letters.get_mut(count)? = letter,
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
    if letters[0] == b'z' {
        cie.augmented = true;
        let bytes = tables.uleb()?;
        let after = tables.at.checked_add(bytes)?;
        for letter in letters[1..count].iter() {
            match letter {
                b'R' => cie.encoding = tables.byte()?,
                b'L' => drop(tables.byte()?),
                b'P' => {
                    let encoding = tables.byte()?;
                    tables.pointer(encoding & 0x7f, 0)?;
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

const START: Row = Row { cfa: Cfa::Register(SP, 8), bp: Saved::Same, ra: Saved::AtCfa(-8), signal: false };

/// Nested `DW_CFA_remember_state`; compilers write one.
const DEPTH: usize = 4;

struct Machine<'a> {
    cie: &'a Cie,
    object: &'a Object,
    row: Row,
    first_row: Row,
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
            BP => self.first_row.bp,
            _ => self.first_row.ra,
        }
    }

    fn span(&self, tables: &mut Tables) -> Option<Span> {
        let bytes = tables.uleb()?;
        let offset = u32::try_from(tables.at.checked_sub(self.object.start)?).ok()?;
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

    /// Runs instructions up to the address; the CIE's (`initial`) all of them.
    fn run(&mut self, mut code: Tables, initial: bool) -> Option<()> {
        let align = self.cie.data_align;
        let factored =
            |value: u64| i32::try_from((value as i64).wrapping_mul(align)).map_or(Saved::Other, Saved::AtCfa);
        while !code.is_done() {
            let byte = code.byte()?;
            let low = u64::from(byte & 0x3f);
            let mut advance = None;
            match byte >> 6 {
                1 => advance = Some(low),
                2 => {
                    let saved = factored(code.uleb()?);
                    self.set(low, saved);
                }
                3 => self.set(low, self.initial(low)),
                _ => match byte {
                    0x00 | 0x2d => {}
                    0x01 => self.location = code.pointer(self.cie.encoding, 0)?,
                    0x02 => advance = Some(code.number(1)?),
                    0x03 => advance = Some(code.number(2)?),
                    0x04 => advance = Some(code.number(4)?),
                    0x05 => {
                        let register = code.uleb()?;
                        let saved = factored(code.uleb()?);
                        self.set(register, saved);
                    }
                    0x06 => {
                        let register = code.uleb()?;
                        self.set(register, self.initial(register));
                    }
                    0x07 => {
                        let register = code.uleb()?;
                        self.set(register, Saved::Undefined);
                    }
                    0x08 => {
                        let register = code.uleb()?;
                        self.set(register, Saved::Same);
                    }
                    0x09 => {
                        let register = code.uleb()?;
                        code.uleb()?;
                        self.set(register, Saved::Other);
                    }
                    0x0a => {
                        *self.saved.get_mut(self.depth)? = self.row;
                        self.depth += 1;
                    }
                    0x0b => {
                        self.depth = self.depth.checked_sub(1)?;
                        self.row = self.saved[self.depth];
                    }
                    0x0c => {
                        let register = code.uleb()?;
                        let offset = code.uleb()? as i64;
                        self.register(register, offset)?;
                    }
                    0x0d => {
                        let register = code.uleb()?;
                        self.register(register, self.cfa_offset().into())?;
                    }
                    0x0e => {
                        let offset = code.uleb()? as i64;
                        self.register(self.cfa_register().into(), offset)?;
                    }
                    0x0f => self.row.cfa = Cfa::Expression(self.span(&mut code)?),
                    0x10 => {
                        let register = code.uleb()?;
                        let span = self.span(&mut code)?;
                        self.set(register, Saved::AtExpression(span));
                    }
                    0x11 => {
                        let register = code.uleb()?;
                        let saved = factored(code.sleb()? as u64);
                        self.set(register, saved);
                    }
                    0x12 => {
                        let register = code.uleb()?;
                        let offset = code.sleb()?.wrapping_mul(align);
                        self.register(register, offset)?;
                    }
                    0x13 => {
                        let offset = code.sleb()?.wrapping_mul(align);
                        self.register(self.cfa_register().into(), offset)?;
                    }
                    0x14 | 0x15 => {
                        let register = code.uleb()?;
                        code.uleb()?;
                        self.set(register, Saved::Other);
                    }
                    0x16 => {
                        let register = code.uleb()?;
                        self.span(&mut code)?;
                        self.set(register, Saved::Other);
                    }
                    0x2e => drop(code.uleb()?),
                    0x2f => {
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
