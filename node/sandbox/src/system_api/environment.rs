//! Environment of the canister: identity, time, controllers, environment variables, certified data.

use serde_bytes::ByteBuf;
use state::Time;

use super::{Blob, Context, Failure, Host};

/// Longest certified data.
const CERTIFIED_DATA_BYTES: u64 = 32;

/// Longest name of an environment variable.
const ENV_NAME_BYTES: u64 = 128;

impl Host {
    pub(super) fn performance_counter(&self, kind: u32) -> Result<u64, Failure> {
        let used = self.limits.instructions.saturating_sub(self.fuel);
        match kind {
            0 => Ok(used),
            1 => Ok(self.context.context_instructions.saturating_add(used)),
            _ => Err(self.violation(format_args!("there is no counter {kind}, only 0 and 1"))),
        }
    }

    pub(super) fn is_controller(&mut self, src: u64, size: u64) -> Result<u32, Failure> {
        let principal = self.read_principal(src, size)?;
        Ok(u32::from(self.context.controllers.contains(&principal)))
    }

    pub(super) fn in_replicated_execution(&self) -> u32 {
        u32::from(self.context.replicated && self.mode != Context::Inspect)
    }

    pub(super) fn global_timer_set(&mut self, time: u64) -> u64 {
        let before = self.changes.global_timer.unwrap_or(self.context.global_timer);
        self.changes.global_timer = Some(Time(time));
        before.0
    }

    pub(super) fn certified_data_set(&mut self, src: u64, size: u64) -> Result<(), Failure> {
        if size > CERTIFIED_DATA_BYTES {
            return Err(self.violation(format_args!(
                "{size} bytes, the limit is {CERTIFIED_DATA_BYTES} bytes"
            )));
        }
        let data = ByteBuf::from(self.read_heap(src, size)?);
        self.changes.certified_data = Some(data);
        Ok(())
    }

    pub(super) fn time(&mut self) -> u64 {
        self.height_read = true;
        self.context.time.0
    }

    pub(super) fn data_certificate_present(&self) -> u32 {
        u32::from(
            matches!(self.mode, Context::Query | Context::CompositeQuery)
                && self.context.data_certificate.is_some(),
        )
    }

    fn env_index(&self, index: u64) -> Result<usize, Failure> {
        let count = self.context.env_vars.len();
        usize::try_from(index).ok().filter(|index| *index < count).ok_or_else(|| {
            self.violation(format_args!("there is no environment variable {index}, only {count}"))
        })
    }

    pub(super) fn env_var_name_size(&self, index: u64) -> Result<u64, Failure> {
        let index = self.env_index(index)?;
        Ok(self.blob(Blob::EnvName(index)).len() as u64)
    }

    pub(super) fn env_var_name_copy(
        &mut self,
        index: u64,
        dst: u64,
        offset: u64,
        size: u64,
    ) -> Result<(), Failure> {
        let index = self.env_index(index)?;
        self.copy_out(Blob::EnvName(index), dst, offset, size)
    }

    fn env_by_name(&mut self, src: u64, size: u64) -> Result<(String, Option<usize>), Failure> {
        let name = self.read_text(src, size, ENV_NAME_BYTES)?;
        let at = self.context.env_vars.iter().position(|(known, _)| *known == name);
        Ok((name, at))
    }

    fn env_value(&mut self, src: u64, size: u64) -> Result<Blob, Failure> {
        match self.env_by_name(src, size)? {
            (_, Some(at)) => Ok(Blob::EnvValue(at)),
            (name, None) => {
                Err(self.violation(format_args!("there is no environment variable '{name}'")))
            }
        }
    }

    pub(super) fn env_var_name_exists(&mut self, src: u64, size: u64) -> Result<u32, Failure> {
        Ok(u32::from(self.env_by_name(src, size)?.1.is_some()))
    }

    pub(super) fn env_var_value_size(&mut self, src: u64, size: u64) -> Result<u64, Failure> {
        let value = self.env_value(src, size)?;
        Ok(self.blob(value).len() as u64)
    }

    pub(super) fn env_var_value_copy(
        &mut self,
        name: (u64, u64),
        dst: u64,
        offset: u64,
        size: u64,
    ) -> Result<(), Failure> {
        let value = self.env_value(name.0, name.1)?;
        self.copy_out(value, dst, offset, size)
    }
}
