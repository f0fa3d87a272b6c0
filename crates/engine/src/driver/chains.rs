//! The chains of a driver: one for records, or one for each shape of each table that is in use (E12, P85).
//!
//! A table's shapes share its queues, so a batch is pushed only once the chains of the other shapes have handed over
//! what they hold: no chunk overtakes another (H4). A batch whose shape has no chain yet waits for it.

use std::collections::BTreeMap;

use landfall_types::PartitionId;

use crate::chain::{BlockReason, Chain, Flushed};
use crate::contract::TableId;

/// See the module.
#[derive(Debug)]
pub(crate) enum Chains {
    /// Of a record source.
    Records(Box<Chain>),
    /// Of a change source, by table and shape.
    Tables(BTreeMap<TableId, Shapes>),
}

/// The chains of a table.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    chains: BTreeMap<u32, Chain>,
    /// Shapes by their last use, the latest last.
    used: Vec<u32>,
}

impl Shapes {
    fn touch(&mut self, shape: u32) {
        if self.used.last() != Some(&shape) {
            self.used.retain(|known| *known != shape);
            self.used.push(shape);
        }
    }

    fn others_are_flushed(&mut self, shape: u32) -> bool {
        self.chains.iter_mut().filter(|(other, _)| **other != shape).all(|(_, chain)| chain.flush() == Flushed::Done)
    }
}

impl Chains {
    fn each(&mut self, mut visit: impl FnMut(&mut Chain)) {
        match self {
            Chains::Records(chain) => visit(chain),
            Chains::Tables(tables) => {
                tables.values_mut().flat_map(|shapes| shapes.chains.values_mut()).for_each(visit);
            }
        }
    }

    /// The chain of a batch, or why there is none for it now.
    pub(super) fn of(&mut self, table: Option<TableId>, shape: Option<u32>) -> Result<&mut Chain, BlockReason> {
        match (self, table) {
            (Chains::Records(chain), _) => Ok(chain),
            (Chains::Tables(tables), Some(table)) => {
                let shape = shape.unwrap_or_default();
                let waits = BlockReason::Shape(table, shape);
                let Some(shapes) = tables.get_mut(&table) else { return Err(waits) };
                shapes.touch(shape);
                if !shapes.others_are_flushed(shape) {
                    return Err(waits);
                }
                shapes.chains.get_mut(&shape).ok_or(waits)
            }
            (Chains::Tables(_), None) => Err(BlockReason::Shape(TableId(u32::MAX), 0)),
        }
    }

    /// Whether there is a chain for this shape.
    pub(super) fn knows(&self, table: TableId, shape: u32) -> bool {
        match self {
            Chains::Records(_) => true,
            Chains::Tables(tables) => tables.get(&table).is_some_and(|shapes| shapes.chains.contains_key(&shape)),
        }
    }

    /// Whether a batch that was blocked for this reason may go on.
    pub(super) fn may_go_on(&mut self, reason: &BlockReason, table: Option<TableId>, shape: Option<u32>) -> bool {
        match (&mut *self, reason) {
            (Chains::Tables(tables), BlockReason::Shape(table, shape)) => tables
                .get_mut(table)
                .is_some_and(|shapes| shapes.chains.contains_key(shape) && shapes.others_are_flushed(*shape)),
            (Chains::Records(chain), reason) => chain.may_go_on(reason),
            (Chains::Tables(tables), reason) => {
                let chain = table.and_then(|table| tables.get(&table)?.chains.get(&shape.unwrap_or_default()));
                chain.is_some_and(|chain| chain.may_go_on(reason))
            }
        }
    }

    /// Takes a table's chain for a shape. Of many shapes those that were used least lately and hold nothing are let go
    /// of; one that is wanted again is made again.
    pub(super) fn add(&mut self, table: TableId, shape: u32, chain: Chain) {
        const SHAPES_KEPT: usize = 8;
        if let Chains::Tables(tables) = self {
            let shapes = tables.entry(table).or_default();
            shapes.chains.insert(shape, chain);
            shapes.touch(shape);
            let old = shapes.used.len().saturating_sub(SHAPES_KEPT);
            let gone: Vec<u32> = shapes.used.iter().take(old).copied().collect();
            for shape in gone {
                if shapes.chains.get(&shape).is_none_or(Chain::is_idle) {
                    shapes.chains.remove(&shape);
                    shapes.used.retain(|known| *known != shape);
                }
            }
        }
    }

    pub(super) fn flush(&mut self) -> Flushed {
        let mut flushed = Flushed::Done;
        self.each(|chain| {
            if chain.flush() == Flushed::Blocked {
                flushed = Flushed::Blocked;
            }
        });
        flushed
    }

    pub(super) fn lull(&mut self) {
        self.each(|chain| chain.lull());
    }

    pub(super) fn retry_parked(&mut self) {
        self.each(Chain::retry_parked);
    }

    pub(super) fn abandon(&mut self, slot: usize) {
        self.each(|chain| chain.abandon(slot));
    }

    pub(super) fn forget(&mut self, partition: PartitionId) {
        self.each(|chain| chain.forget(partition));
    }
}
