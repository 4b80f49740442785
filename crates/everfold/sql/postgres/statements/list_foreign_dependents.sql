-- What is outside a generation's schema and depends on something in it, in words: others' views,
-- constraints, functions. Dropping the schema would drop it too.
-- $1 schema text. Takes no locks.
WITH home AS (
    SELECT n.oid, n.nspname FROM pg_catalog.pg_namespace n WHERE n.nspname = $1
), inside AS (
    SELECT 'pg_catalog.pg_class'::regclass::oid AS class, c.oid AS object
      FROM pg_catalog.pg_class c JOIN home h ON h.oid = c.relnamespace
    UNION ALL
    SELECT 'pg_catalog.pg_type'::regclass, t.oid FROM pg_catalog.pg_type t JOIN home h ON h.oid = t.typnamespace
    UNION ALL
    SELECT 'pg_catalog.pg_proc'::regclass, p.oid FROM pg_catalog.pg_proc p JOIN home h ON h.oid = p.pronamespace
)
SELECT DISTINCT CASE WHEN d.classid = 'pg_catalog.pg_rewrite'::regclass
           THEN (SELECT pg_describe_object('pg_catalog.pg_class'::regclass, r.ev_class, 0)
                   FROM pg_catalog.pg_rewrite r WHERE r.oid = d.objid)
           ELSE pg_describe_object(d.classid, d.objid, d.objsubid) END
  FROM inside i
  JOIN pg_catalog.pg_depend d ON d.refclassid = i.class AND d.refobjid = i.object AND d.deptype IN ('n', 'a')
 CROSS JOIN home h
 WHERE CASE WHEN d.classid = 'pg_catalog.pg_type'::regclass
            THEN (SELECT t.typnamespace FROM pg_catalog.pg_type t WHERE t.oid = d.objid) <> h.oid
            ELSE (SELECT o.object_names[1]
                    FROM pg_identify_object_as_address(d.classid, d.objid, d.objsubid) o)
                 IS DISTINCT FROM h.nspname::text END
 ORDER BY 1
