//! Sizes as people write them: `512MiB`, `1.5 GiB`, `64mb`, `1048576`.
//!
//! Binary units (`KiB`, `MiB`, `GiB`, `TiB`, and the bare letters `K`, `M`, `G`, `T` that
//! containers and service managers use) are powers of 1024; units that end in a plain `B` (`kB`,
//! `MB`, `GB`, `TB`) are powers of 1000. Case does not matter. Arithmetic is exact on integers: no
//! size is ever rounded through a floating-point number on the way in.

use std::fmt::Write;

/// One kibibyte: 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// One mebibyte: 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// One gibibyte: 1024 MiB.
pub const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Longest text taken for a size; nothing longer can be one.
const TEXT_BYTES_MAX: usize = 40;
/// Digits after the point; more would be less than a byte in any unit in use.
const FRACTION_DIGITS_MAX: usize = 6;

/// Why a text is not a size. The message shows the valid form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Nothing was written.
    #[error("a size is missing; write a number and a unit, for example 512MiB")]
    Empty,
    /// The text does not begin with a number.
    #[error("`{0}` is not a size: it must begin with a number, for example 512MiB")]
    NoNumber(String),
    /// The unit is unknown.
    #[error(
        "`{unit}` in `{text}` is not a unit of size; use B, KiB, MiB, GiB, TiB (powers of 1024) \
         or kB, MB, GB, TB (powers of 1000)"
    )]
    UnknownUnit {
        /// The whole text that was read, cut to 40 characters.
        text: String,
        /// The part not understood.
        unit: String,
    },
    /// A fraction that is not a whole number of bytes, or has too many digits.
    #[error(
        "`{0}` is not a whole number of bytes; write it in a smaller unit, for example 1536MiB \
         instead of 1.5GiB"
    )]
    NotWhole(String),
    /// More than 64 bits of bytes.
    #[error("`{0}` is more than any machine has; the largest size is 16777215 TiB")]
    TooLarge(String),
}

/// Reads a size in bytes.
///
/// ```
/// assert_eq!(accounting::parse_size("512MiB"), Ok(512 << 20));
/// assert_eq!(accounting::parse_size("1.5 gib"), Ok(1536 << 20));
/// assert_eq!(accounting::parse_size("64MB"), Ok(64_000_000));
/// ```
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let shown = || text.chars().take(TEXT_BYTES_MAX).collect::<String>();
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(SizeError::Empty);
    }
    if trimmed.len() > TEXT_BYTES_MAX {
        return Err(SizeError::NoNumber(shown()));
    }
    let number_end = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.replace('_', "");
    if whole.is_empty()
        || fraction.contains(['.', '_'])
        || (number.contains('.') && fraction.is_empty())
    {
        return Err(SizeError::NoNumber(shown()));
    }
    let unit = unit.trim();
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" | "byte" | "bytes" => 1,
        "k" | "ki" | "kib" => KIB,
        "m" | "mi" | "mib" => MIB,
        "g" | "gi" | "gib" => GIB,
        "t" | "ti" | "tib" => TIB,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(SizeError::UnknownUnit { text: shown(), unit: unit.to_owned() }),
    };
    let whole: u64 = whole.parse().map_err(|_| SizeError::TooLarge(shown()))?;
    let whole = whole.checked_mul(factor).ok_or_else(|| SizeError::TooLarge(shown()))?;
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        return Ok(whole);
    }
    if fraction.len() > FRACTION_DIGITS_MAX {
        return Err(SizeError::NotWhole(shown()));
    }
    let scale = 10_u64.pow(fraction.len() as u32);
    let part = fraction
        .parse::<u64>()
        .ok()
        .and_then(|digits| digits.checked_mul(factor))
        .ok_or_else(|| SizeError::TooLarge(shown()))?;
    if !part.is_multiple_of(scale) {
        return Err(SizeError::NotWhole(shown()));
    }
    whole.checked_add(part / scale).ok_or_else(|| SizeError::TooLarge(shown()))
}

/// Hint for a size that is too small where `text` states it without a unit, which means bytes.
pub fn missing_unit(text: &str) -> Option<String> {
    let number = text.trim();
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| {
        format!("`{number}` has no unit and means bytes; write {number}MiB or {number}GiB")
    })
}

/// Writes a size for a person: the largest unit in which it is at least one, with up to two
/// decimals. Exact when it shows no decimals or when those shown are all there are; [`parse_size`]
/// reads every text this writes.
pub fn format_size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        TIB.. => (TIB, "TiB"),
        GIB.. => (GIB, "GiB"),
        MIB.. => (MIB, "MiB"),
        KIB.. => (KIB, "KiB"),
        _ => return format!("{bytes} B"),
    };
    // 1.5 GiB reads well; 1.14 GiB hides that it is 1168 MiB. So a whole number of the next smaller
    // unit wins unless two decimals are exact.
    let hundredths = u128::from(bytes) * 100 / u128::from(unit);
    let exact = hundredths * u128::from(unit) == u128::from(bytes) * 100;
    if !exact {
        let smaller = [(GIB, "GiB"), (MIB, "MiB")];
        if let Some((unit, name)) = smaller
            .into_iter()
            .find(|(smaller, _)| *smaller < unit && bytes.is_multiple_of(*smaller))
        {
            return format!("{} {name}", bytes / unit);
        }
    }
    let mut text = format!("{}", hundredths / 100);
    let decimals = hundredths % 100;
    if decimals != 0 {
        let digits = format!("{decimals:02}");
        // Writing to a String cannot fail.
        let _ = write!(text, ".{}", digits.trim_end_matches('0'));
    }
    let _ = write!(text, " {name}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_in_every_unit_and_spelling() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", MIB),
            ("12 B", 12),
            ("512MiB", 512 * MIB),
            ("512 MiB", 512 * MIB),
            ("512mib", 512 * MIB),
            ("512M", 512 * MIB),
            ("512m", 512 * MIB),
            ("2GiB", 2 * GIB),
            ("2gi", 2 * GIB),
            ("1.5GiB", 1536 * MIB),
            ("0.5KiB", 512),
            ("64MB", 64_000_000),
            ("64mb", 64_000_000),
            ("1kB", 1_000),
            ("1_024 KiB", MIB),
            ("3 TiB", 3 * TIB),
            ("1.50 GiB", 1536 * MIB),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn malformed_sizes_are_refused_with_the_reason() {
        assert_eq!(parse_size(" "), Err(SizeError::Empty));
        for text in ["MiB", "-1MiB", ".5GiB", "1.GiB", "1.2.3MiB", "five"] {
            assert!(matches!(parse_size(text), Err(SizeError::NoNumber(_))), "{text}");
        }
        let unknown = parse_size("512 miib").unwrap_err().to_string();
        assert!(unknown.contains("`miib`") && unknown.contains("MiB"), "{unknown}");
        assert!(matches!(parse_size("0.3B"), Err(SizeError::NotWhole(_))));
        assert!(matches!(parse_size("1.3333333KiB"), Err(SizeError::NotWhole(_))));
        assert!(matches!(parse_size("99999999999999999999"), Err(SizeError::TooLarge(_))));
        assert!(matches!(parse_size("17000000TiB"), Err(SizeError::TooLarge(_))));
        assert!(parse_size(&"9".repeat(10_000)).is_err());
        assert!(parse_size("１MiB").is_err(), "digits of other scripts are no number here");
    }

    #[test]
    fn a_number_alone_lacks_a_unit() {
        assert_eq!(
            missing_unit(" 100").unwrap(),
            "`100` has no unit and means bytes; write 100MiB or 100GiB"
        );
        for text in ["100B", "100 MiB", "1.5", ""] {
            assert_eq!(missing_unit(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_written_as_people_say_them() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (KIB, "1 KiB"),
            (1536, "1.5 KiB"),
            (512 * MIB, "512 MiB"),
            (MIB + MIB / 2, "1.5 MiB"),
            (GIB, "1 GiB"),
            (1536 * MIB, "1.5 GiB"),
            (1168 * MIB, "1168 MiB"),
            (2 * TIB, "2 TiB"),
            (TIB + GIB, "1025 GiB"),
            (TIB + MIB, "1048577 MiB"),
            (u64::MAX, "16777215.99 TiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn what_is_written_exactly_is_read_back() {
        for step in 0..4096_u64 {
            let bytes = step * MIB;
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
            assert_eq!(parse_size(&format!("{bytes}")), Ok(bytes));
        }
    }
}
